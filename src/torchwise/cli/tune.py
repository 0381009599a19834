"""`torchwise tune`: find the fastest verified way to run a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.files import check_writable
from torchwise.cli.interrupts import interruptible
from torchwise.cli.options import Cold, Device, Effort, Restarts, Seed, Store, Target, json_option
from torchwise.plan.workload_spec import DEFAULT_CALLS

Launcher = Annotated[str, typer.Option(help="process (this machine) or ray (one device of a Ray cluster).")]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of the Ray cluster: HOST:PORT, ray://HOST:PORT or auto.",
        show_default="RAY_ADDRESS, or this machine",
    ),
]


def tune(
    target: Target,
    calls: Annotated[int, typer.Option(help="Expected number of calls over the lifetime.")] = DEFAULT_CALLS,
    restarts: Restarts = 1,
    allow: Annotated[
        str,
        typer.Option(help="Permitted numerics: exact, same-precision, lower-precision or substituted."),
    ] = "same-precision",
    effort: Effort = "standard",
    budget: Annotated[
        float | None,
        typer.Option(
            help="Time budget in seconds. Afterwards no further trial starts.",
            show_default="by effort; none with --plan",
        ),
    ] = None,
    objective: Annotated[str, typer.Option(help="latency, throughput or memory.")] = "latency",
    memory_limit: Annotated[
        float | None,
        typer.Option(help="Maximum peak memory of a call in GiB, besides weights and inputs.", show_default="none"),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="inference or training (with a backward pass, or whole steps of a TrainStep).")
    ] = "inference",
    device: Device = "",
    seed: Seed = 0,
    plan: Annotated[
        list[str] | None, typer.Option(help="Try exactly this plan, as JSON, instead of searching. May be repeated.")
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Delete the stored study and measure again. Targets of one structure share a study."
        ),
    ] = False,
    cold: Cold = False,
    launcher: Launcher = "process",
    address: Address = None,
    store: Store = None,
    json: Annotated[Path | None, json_option("Write the study as JSON (schema torchwise.study/1)")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the study as a self-contained page.")] = None,
) -> None:
    """Verify and time candidate plans for a model, each in its own process, and choose by expected total cost.

    Exit codes: 0 decided, also to stay with eager. 2 invalid input. 3 the model itself fails. 4 inconclusive: the
    measurements cannot tell whether a plan is faster, so eager stays. 130 interrupted.
    """
    from rich.console import Console

    from torchwise.records.answer import EXIT_INCONCLUSIVE
    from torchwise.records.files import write_atomically, write_json
    from torchwise.report import Progress, render_html, render_study
    from torchwise.store import open_storage
    from torchwise.study import run_study
    from torchwise.study.cluster import Task, choice

    choice.check(launcher, address)
    device = device or choice.default_device(launcher, address)
    task = Task(
        target,
        device,
        mode,
        objective=objective,
        calls=calls,
        restarts=restarts,
        allow=allow,
        effort=effort,
        budget=budget,
        memory_limit=memory_limit,
        seed=seed,
        plan=tuple(plan or ()),
        cold=cold,
    )
    request = task.request(fresh=fresh)
    for file in (json, html):
        check_writable(file)
    kept = "; finished trials are saved, and the same command continues"
    with (
        interruptible(lambda: kept),
        open_storage(store) as storage,
        Progress() as progress,
        choice.opened(launcher, device, address, progress.note) as (opened, here),
    ):
        study = run_study(request, storage, opened, progress, here)
        place = storage.place if store else None
    Console().print(render_study(study, store=place))
    if json:
        write_json(study, json)
    if html:
        write_atomically(render_html(study, store=place), html)
    if study.decision and study.decision.is_inconclusive:
        raise typer.Exit(EXIT_INCONCLUSIVE)
