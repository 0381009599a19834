"""`torchwise tune`: find the fastest verified way to run a model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli import options as opt
from torchwise.cli.common import interruptible, resolve_plan, show_study
from torchwise.plan.workload_spec import DEFAULT_CALLS

if TYPE_CHECKING:
    from torchwise.records import Study
    from torchwise.study.request import Request

MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        help="Maximum peak memory of a call, besides weights and inputs, such as 2GB or 2GiB. Without a unit, in GiB.",
        show_default="none",
    ),
]
LatencyLimit = Annotated[
    str | None,
    typer.Option(
        help="With objective throughput: find batch size and plan together, so that a batching server answers each "
        "request within this time, such as 20ms.",
        show_default="none",
    ),
]
Batch = Annotated[
    str,
    typer.Option(
        help="With objective throughput: as-given (the batch size of the inputs, if there is no --latency-limit), or "
        "best (find the batch size of most samples per second within memory, together with the plan).",
        autocompletion=opt.complete("as-given", "best"),
    ),
]
TuneMode = Annotated[
    str,
    typer.Option(
        help="inference or training (with a backward pass, or whole steps of a TrainStep).",
        autocompletion=opt.complete_mode,
    ),
]


def tune(
    target: opt.Target,
    calls: opt.Calls = DEFAULT_CALLS,
    restarts: opt.Restarts = 1,
    allow: opt.Allow = "same-precision",
    effort: opt.Effort = "standard",
    budget: Annotated[
        float | None, opt.budget_option("by effort: 120, 900 or 7200 of search; none with --plan")
    ] = None,
    wait: opt.Wait = False,
    compile_timeout: opt.CompileTimeout = None,
    iterations: opt.Iterations = None,
    fullgraph: opt.FullGraph = False,
    workers: opt.Workers = 1,
    objective: opt.Objective = "latency",
    memory_limit: MemoryLimit = None,
    latency_limit: LatencyLimit = None,
    batch: Batch = "as-given",
    sizes: opt.Sizes = "as-given",
    tolerance: opt.Tolerance = None,
    metric: opt.Metric = None,
    require: opt.Require = None,
    mode: TuneMode = "inference",
    device: opt.Device = "",
    seed: opt.Seed = 0,
    plan: opt.TryPlans = None,
    fresh: opt.Fresh = False,
    cold: opt.Cold = False,
    launcher: opt.Launcher = "process",
    address: opt.Address = None,
    store: opt.Store = None,
    json: Annotated[Path | None, opt.json_option("Write the study as JSON (schema torchwise.study/1)")] = None,
    html: Annotated[Path | None, opt.html_option("Write the study as a self-contained page.")] = None,
) -> None:
    """Find the fastest verified way to run a model.

    Candidate plans are verified and timed, each in its own process. The choice is by expected total cost.

    Exit codes: 0 decided, also to stay with eager. 1 with --fullgraph, the graph breaks. 2 invalid input. 3 the model
    itself fails. 4 inconclusive: the measurements cannot tell whether a plan is faster, or the budget ended
    before that, so eager stays. 130 interrupted.
    """
    from torchwise.records.answer import EXIT_INCONCLUSIVE
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
        latency_limit=latency_limit,
        batch=batch,
        input_sizes=sizes,
        tolerance=tolerance,
        metric=metric,
        require=tuple(require or ()),
        seed=seed,
        plan=tuple(resolve_plan(name, (target,), store).to_json() for name in plan or ()),
        cold=cold,
        wait=wait,
        compile_timeout=compile_timeout,
        iterations=iterations,
        fullgraph=fullgraph,
        workers=workers,
    )
    study, place = search_study(task.request(fresh=fresh), launcher, device, address, store)
    show_study(study, json, html, store=place)
    if study.decision and study.decision.is_inconclusive:
        raise typer.Exit(EXIT_INCONCLUSIVE)


def search_study(
    request: Request, launcher: str, device: str, address: str | None, store: str | None
) -> tuple[Study, str | None]:
    """Run the study, and return it with the location of its store, or None for the default one."""
    from torchwise.report import Progress
    from torchwise.store import open_storage
    from torchwise.study import run_study
    from torchwise.study.cluster import choice

    budget = request.start_budget(lambda _stage: None)
    wait_s = math.inf if budget.can_wait else budget.left_s
    kept = "; finished trials are saved, and the same command continues"
    with (
        interruptible(lambda: kept),
        open_storage(store) as storage,
        Progress() as progress,
        choice.opened(launcher, device, address, progress, wait_s) as (opened, here),
    ):
        return run_study(request, storage, opened, progress, here), storage.place if store else None
