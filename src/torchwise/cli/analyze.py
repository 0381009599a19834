"""`torchwise analyze`: one plan in full, from its compile cost to the memory to reserve for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli.files import check_writable
from torchwise.cli.interrupts import interruptible
from torchwise.cli.options import Device, Effort, Mode, Restarts, Seed, Store, Target, json_option
from torchwise.workload.spec import DEFAULT_CALLS

if TYPE_CHECKING:
    from torchwise.plan import Plan

LIMIT_S = 600.0
"""The same as `torchwise.diagnose.analysis.run.LIMIT_S`, whose import would load all of that module."""


def analyze(
    target: Target,
    plan: Annotated[
        str,
        typer.Option(
            help="eager, a mode of torch.compile (reduce-overhead, max-autotune, …), a plan as JSON, the id of a plan "
            "that was decided for, or a study: its number, latest (decided last), or a .json file.",
            show_default="torch.compile's default",
        ),
    ] = "",
    calls: Annotated[int, typer.Option(help="Calls expected over the lifetime.")] = DEFAULT_CALLS,
    restarts: Restarts = 1,
    batches: Annotated[
        str,
        typer.Option(help="Batch sizes to try as well, such as 1,2,4,8; each is compiled anew.", show_default="none"),
    ] = "",
    batch_dim: Annotated[
        int | None, typer.Option(help="Dimension of the batch in every input.", show_default="found")
    ] = None,
    effort: Effort = "standard",
    mode: Mode = "inference",
    objective: Annotated[str, typer.Option(help="latency, or throughput: calls back to back.")] = "latency",
    device: Device = "",
    seed: Seed = 0,
    limit: Annotated[float, typer.Option(help="Seconds after which one phase is ended.")] = LIMIT_S,
    store: Store = None,
    json: Annotated[Path | None, json_option("Write the analysis as JSON (schema torchwise.analysis/1)")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the analysis as a self-contained page.")] = None,
) -> None:
    """Look at one plan in full: baseline, compile cost, consistency, economics, memory, correctness, batch sizes.

    Exit codes: 0 analysed (also "leave it alone"), 2 bad input, 3 the model itself fails, 4 inconclusive (the
    measurements cannot tell whether the plan pays), 130 interrupted.
    """
    from rich.console import Console

    from torchwise.diagnose.analysis.run import AnalyzeRequest, run_analysis
    from torchwise.environment import default_device
    from torchwise.records.answer import EXIT_INCONCLUSIVE, Answer
    from torchwise.report.analysis import AnalyzeProgress, render_analysis, write_analysis_html
    from torchwise.report.json_export import write_json
    from torchwise.store.location import place_of
    from torchwise.trial import ProcessLauncher
    from torchwise.workload import WorkloadSpec
    from torchwise.workload.target import check_form

    check_form(target)
    spec = WorkloadSpec(
        target,
        device=device or default_device(),  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        objective=objective,  # type: ignore[arg-type]
        calls=calls,
        restarts=restarts,
        seed=seed,
    )
    request = AnalyzeRequest(spec, _plan(plan, store), effort, _sizes(batches), batch_dim, limit)
    for file in (json, html):
        check_writable(file)
    place = place_of(store) if store else None
    with interruptible(lambda: "; nothing is kept of an analysis that is not done"), AnalyzeProgress() as progress:
        analysis = run_analysis(request, ProcessLauncher(), progress)
    Console(highlight=False).print(render_analysis(analysis, place))
    if json:
        write_json(analysis, json)
    if html:
        write_analysis_html(analysis, html, place)
    if analysis.answer is Answer.INCONCLUSIVE:
        raise typer.Exit(EXIT_INCONCLUSIVE)


def _plan(given: str, store: str | None) -> Plan:
    """Return the plan that `given` names.

    Raises:
        InputError: there is no such plan, or the study has no decision.
    """
    from torchwise.cli.lookup import find_decided
    from torchwise.diagnose.analysis.plans import is_id, plan_of

    if given != "latest" and not given.endswith(".json") and (not given.isdecimal() or is_id(given)):
        return plan_of(given or None, store)
    _, decision = find_decided(given, store)
    return decision.plan


def _sizes(given: str) -> tuple[int, ...]:
    """Read comma-separated batch sizes.

    Raises:
        InputError: a size is no whole number.
    """
    from torchwise.errors import InputError

    words = [word.strip() for word in given.split(",") if word.strip()]
    if wrong := next((word for word in words if not word.isdecimal()), None):
        raise InputError(f"batch size is {wrong!r}, but must be a whole number of at least 1, as in --batches 1,2,4,8")
    return tuple(map(int, words))
