"""`torchwise bisect`: find the cause of a wrong answer, a NaN, a crash, a hang or a slow-down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli.common import check_writable, interruptible, resolve_choice
from torchwise.cli.options import (
    PLAN_HELP,
    Budget,
    Device,
    Mode,
    Seed,
    Store,
    Target,
    complete,
    complete_plan,
    former_option,
    json_option,
)

if TYPE_CHECKING:
    from torchwise.plan import Plan
    from torchwise.records import Decision
    from torchwise.records.bisection import Bisection

LIMIT_S = 300.0
"""The same as `torchwise.diagnose.bisect.probe_runner.LIMIT_S`, whose import would load the launcher."""
NOT_COMPARABLE = 5
"""Exit code if the answers cannot be compared. A script must not take that for "nothing found"."""
PlanOrStudy = Annotated[
    str | None,
    typer.Option(
        help=f"Plan to bisect: {PLAN_HELP}",
        show_default="plain torch.compile",
        autocompletion=complete_plan,
    ),
]
ReproFile = Annotated[
    Path,
    typer.Option(
        help="Write the reproducer, a program that shows the fault, to this .py file. Its inputs go to a .pt file."
    ),
]


def bisect(
    target: Target,
    symptom: Annotated[
        str,
        typer.Option(
            help="wrong, nan, crash, hang, slow, or auto for any of them except slow.",
            autocompletion=complete("wrong", "nan", "crash", "hang", "slow", "auto"),
        ),
    ] = "auto",
    what: Annotated[str | None, former_option("--what", "--symptom")] = None,
    plan: PlanOrStudy = None,
    mode: Mode = "inference",
    device: Device = "",
    seed: Seed = 0,
    limit: Annotated[
        float, typer.Option(help="Time limit in seconds for one probe. Beyond it, the probe counts as a hang.")
    ] = LIMIT_S,
    budget: Budget = None,
    repro: ReproFile = Path("bisect_repro.py"),
    no_repro: Annotated[bool, typer.Option("--no-repro", help="Write no reproducer.")] = False,
    store: Store = None,
    json: Annotated[Path | None, json_option("Write the result as JSON (schema torchwise.bisection/1)")] = None,
) -> None:
    """Find the cause of a wrong answer, a NaN, a crash or a hang.

    The cause is a compiler stage, a pass and operations. A program that shows the fault is written.

    Exit codes: 0 no fault found. 1 a fault was found. 2 invalid input. 3 the model itself fails. 4 the budget ended
    before the model was compiled and compared. 5 the answers cannot be compared, so a fault may be undetected. 130
    interrupted.
    """
    from rich.console import Console

    from torchwise.diagnose.bisect import BisectRequest, run_bisection
    from torchwise.diagnose.requests import make_spec, plan_of
    from torchwise.plan import EAGER
    from torchwise.plan.workload_spec import check_form
    from torchwise.records.files import write_json
    from torchwise.report.bisection import render_bisection
    from torchwise.report.progress import BisectProgress
    from torchwise.trial import ProcessLauncher

    check_form(target)
    chosen = _resolve_choice(plan, target, store) if plan else EAGER
    spec = make_spec(target, None, device, chosen, mode=mode, seed=seed)
    request = BisectRequest(spec, what or symptom, plan_of(chosen), limit, budget, None if no_repro else str(repro))
    check_writable(None if no_repro else repro)
    progress = BisectProgress()
    with interruptible(lambda: _describe_interruption(len(progress.steps))), progress:
        bisection = run_bisection(request, ProcessLauncher(preloads=True), progress)
    if json:
        write_json(bisection, json)
    Console(highlight=False).print(render_bisection(bisection))
    raise typer.Exit(exit_code(bisection))


def exit_code(bisection: Bisection) -> int:
    """Return 0 for nothing found, 1 for a fault, and 5 if the answers could not be compared."""
    if not bisection.is_comparable:
        return NOT_COMPARABLE
    return 1 if bisection.found else 0


def _describe_interruption(probes: int) -> str:
    if not probes:
        return " before the first probe was done"
    return f" after {probes} probe{'s' * (probes > 1)}; their results are printed above"


def _resolve_choice(text: str, target: str, store: str | None) -> Plan | Decision:
    """Return the named plan, or the decision that chose it, unless it is eager."""
    from torchwise.diagnose.requests import plan_of
    from torchwise.errors import InputError

    chosen = resolve_choice(text, (target,), store)
    if plan_of(chosen).is_eager:
        raise InputError("the plan is eager, so there is nothing to bisect: leave --plan out")
    return chosen
