"""`torchwise analyze`: measure one plan in detail, from its compile cost to the memory to reserve for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from torchwise.cli import options as opt
from torchwise.cli.common import interruptible, keep_report, resolve_choice
from torchwise.plan.workload_spec import DEFAULT_CALLS

LIMIT_S = 600.0
"""The same as `torchwise.diagnose.analyze.LIMIT_S`, whose import would load all of that module."""
PlanName = Annotated[
    str,
    typer.Option(
        help=f"Plan to measure: {opt.PLAN_HELP}",
        show_default="torch.compile's default",
        autocompletion=opt.complete_plan,
    ),
]
Batches = Annotated[
    str,
    typer.Option(
        help="Batch sizes to measure as well, such as 1,2,4,8. Each compiles separately.", show_default="none"
    ),
]
BatchDim = Annotated[int | None, typer.Option(help="Dimension of the batch in every input.", show_default="detected")]


def analyze(
    target: opt.Target,
    plan: PlanName = "",
    calls: opt.Calls = DEFAULT_CALLS,
    restarts: opt.Restarts = 1,
    batches: Batches = "",
    batch_dim: BatchDim = None,
    effort: opt.Effort = "standard",
    mode: opt.Mode = "inference",
    objective: Annotated[
        str,
        typer.Option(
            help="Aim: latency or throughput (calls back to back).",
            autocompletion=opt.complete("latency", "throughput"),
        ),
    ] = "latency",
    device: opt.Device = "",
    seed: opt.Seed = 0,
    limit: Annotated[float, typer.Option(help="Time limit in seconds for one phase.")] = LIMIT_S,
    keep: opt.Keep = True,
    store: opt.Store = None,
    json: Annotated[Path | None, opt.json_option("Write the analysis as JSON (schema torchwise.analysis/1)")] = None,
    html: Annotated[Path | None, opt.html_option("Write the analysis as a self-contained page.")] = None,
) -> None:
    """Measure one plan in detail, from compile cost to memory.

    The phases: baseline, compile cost, variation, break-even, memory, correctness, batch sizes.

    Exit codes: 0 analysed, also if the advice is to stay with eager. 2 invalid input. 3 the model itself fails. 4
    inconclusive: the measurements cannot tell whether the plan pays off. 130 interrupted.
    """
    from rich.console import Console

    from torchwise.diagnose.analyze import AnalyzeRequest, run_analysis
    from torchwise.diagnose.requests import make_spec, plan_of
    from torchwise.plan.workload_spec import check_form
    from torchwise.records.answer import EXIT_INCONCLUSIVE, Answer
    from torchwise.records.files import write_atomically, write_json
    from torchwise.report.analysis import render_analysis, render_analysis_html
    from torchwise.report.progress import AnalyzeProgress
    from torchwise.store.location import place_of
    from torchwise.trial import ProcessLauncher

    check_form(target)
    options: dict[str, Any] = {"mode": mode, "objective": objective, "calls": calls, "restarts": restarts, "seed": seed}
    chosen = resolve_choice(plan or "default", (target,), store)
    spec = make_spec(target, None, device, chosen, **options)
    request = AnalyzeRequest(spec, plan_of(chosen), effort, _parse_sizes(batches), batch_dim, limit)
    place = place_of(store) if store else None
    with interruptible(lambda: "; an unfinished analysis is not saved"), AnalyzeProgress() as progress:
        analysis = run_analysis(request, ProcessLauncher(preloads=True), progress)
    Console(highlight=False).print(render_analysis(analysis, place))
    if json:
        write_json(analysis, json)
    if html:
        write_atomically(render_analysis_html(analysis, place), html)
    if keep:
        keep_report(analysis, store)
    if analysis.answer is Answer.INCONCLUSIVE:
        raise typer.Exit(EXIT_INCONCLUSIVE)


def _parse_sizes(text: str) -> tuple[int, ...]:
    """Read comma-separated batch sizes."""
    from torchwise.errors import InputError

    words = [word.strip() for word in text.split(",") if word.strip()]
    if wrong := next((word for word in words if not word.isdecimal()), None):
        raise InputError(f"batch size is {wrong!r}, but must be a whole number of at least 1, as in --batches 1,2,4,8")
    return tuple(map(int, words))
