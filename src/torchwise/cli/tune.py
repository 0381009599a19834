"""`torchwise tune`: find the fastest verified way to run a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.files import check_writable
from torchwise.cli.interrupts import interruptible
from torchwise.cli.options import Cold, Device, Effort, Restarts, Seed, Store, Target, json_option
from torchwise.workload.spec import DEFAULT_CALLS

Launcher = Annotated[str, typer.Option(help="process, on this machine, or ray, on one device of a Ray cluster.")]
Address = Annotated[
    str | None,
    typer.Option(help="Of the Ray cluster: HOST:PORT, ray://HOST:PORT or auto.", show_default="RAY_ADDRESS, or here"),
]


def tune(
    target: Target,
    calls: Annotated[int, typer.Option(help="Calls expected over the lifetime that is decided for.")] = DEFAULT_CALLS,
    restarts: Restarts = 1,
    allow: Annotated[
        str,
        typer.Option(help="How far answers may move: exact, same-precision, lower-precision or substituted."),
    ] = "same-precision",
    effort: Effort = "standard",
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds after which no further trial starts.", show_default="by effort; none with --plan"),
    ] = None,
    objective: Annotated[str, typer.Option(help="latency, throughput or memory.")] = "latency",
    memory_limit: Annotated[
        float | None,
        typer.Option(help="GiB that a call may take at its peak, beside weights and inputs.", show_default="none"),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="inference, or training: a backward pass, or whole steps of a TrainStep.")
    ] = "inference",
    device: Device = "",
    seed: Seed = 0,
    plan: Annotated[
        list[str] | None, typer.Option(help="Try exactly this plan, as JSON, instead of searching; may be repeated.")
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Forget the stored study, which targets of one structure share; measure anew."),
    ] = False,
    cold: Cold = False,
    launcher: Launcher = "process",
    address: Address = None,
    store: Store = None,
    json: Annotated[Path | None, json_option("Write the study as JSON (schema torchwise.study/1)")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the study as a self-contained page.")] = None,
) -> None:
    """Try candidate plans for a model, each proven and timed in its own process; decide by expected cost.

    Exit codes: 0 decided (also "stay with eager", as where no answer can be compared), 2 bad input, 3 the model itself
    fails, 4 inconclusive (the measurements cannot tell whether a plan is faster, so eager stays), 130 interrupted.
    """
    from rich.console import Console

    from torchwise.cluster import Task, choice
    from torchwise.records.answer import EXIT_INCONCLUSIVE
    from torchwise.report import Progress, render_study, write_html, write_json
    from torchwise.store import open_storage
    from torchwise.study import run_study

    choice.check(launcher, address)
    device = device or choice.default_device(launcher, address)
    asked = Task(
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
    request = asked.request(fresh=fresh)
    for file in (json, html):
        check_writable(file)
    kept = "; finished trials are kept, and the same command goes on"
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
        write_html(study, html, store=place)
    if study.decision and study.decision.is_inconclusive:
        raise typer.Exit(EXIT_INCONCLUSIVE)
