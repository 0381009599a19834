"""`torchwise bisect`: find the source of a wrong answer, a NaN, a crash, a hang or a slow-down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli.files import check_writable
from torchwise.cli.interrupts import interruptible
from torchwise.cli.options import Device, Mode, Seed, Store, Target, json_option

if TYPE_CHECKING:
    from torchwise.plan import Plan
    from torchwise.records.bisection import Bisection

LIMIT_S = 300.0
NOT_COMPARABLE = 5
"""Exit code if it is unknown whether there is a fault, which a script must not take for "nothing found"."""


def bisect(
    target: Target,
    what: Annotated[
        str, typer.Option(help="wrong, nan, crash, hang, slow, or auto for whichever there is but slow.")
    ] = "auto",
    plan: Annotated[
        str | None,
        typer.Option(
            help="Bisect a plan of Torchwise: as JSON, or a study's decision by its number, `latest` or .json file.",
            show_default="plain torch.compile",
        ),
    ] = None,
    mode: Mode = "inference",
    device: Device = "",
    seed: Seed = 0,
    limit: Annotated[float, typer.Option(help="Seconds after which one look is ended: a hang.")] = LIMIT_S,
    budget: Annotated[float | None, typer.Option(help="Seconds after which no further look starts.")] = None,
    repro: Annotated[
        Path, typer.Option(help="File for the program that shows the fault, .py; its inputs go beside it, .pt.")
    ] = Path("bisect_repro.py"),
    no_repro: Annotated[bool, typer.Option("--no-repro", help="Write no such program.")] = False,
    store: Store = None,
    json: Annotated[Path | None, json_option("Write what was found (schema torchwise.bisection/1)")] = None,
) -> None:
    """Find where a fault enters: stage, pass or option, smallest part, with a program that shows it.

    Exit codes: 0 nothing found, 1 a fault was found, 2 bad input, 3 the model itself fails, 5 not comparable: the
    answers cannot be looked into, so that nobody can tell; 130 interrupted.
    """
    from rich.console import Console

    from torchwise.diagnose.bisect import BisectRequest, run_bisection
    from torchwise.environment import default_device
    from torchwise.plan import EAGER
    from torchwise.report.bisect import BisectProgress, render_bisection
    from torchwise.report.json_export import write_json
    from torchwise.trial import ProcessLauncher
    from torchwise.workload import WorkloadSpec
    from torchwise.workload.target import check_form

    check_form(target)
    spec = WorkloadSpec(target, device=device or default_device(), mode=mode, seed=seed)  # type: ignore[arg-type]
    file = None if no_repro else str(repro)
    request = BisectRequest(spec, what, _plan(plan, store) if plan else EAGER, limit, budget, file)
    for path in (json, None if no_repro else repro):
        check_writable(path)
    progress = BisectProgress()
    with interruptible(lambda: _describe_interruption(len(progress.steps))), progress:
        found = run_bisection(request, ProcessLauncher(), progress)
    if json:
        write_json(found, json)
    Console(highlight=False).print(render_bisection(found))
    raise typer.Exit(exit_code(found))


def exit_code(found: Bisection) -> int:
    """Return 0 for nothing found, 1 for a fault, and 5 if the answers could not be compared."""
    if not found.is_comparable:
        return NOT_COMPARABLE
    return 1 if found.found else 0


def _describe_interruption(looks: int) -> str:
    if not looks:
        return " before the first look was done"
    return f" after {looks} look{'s' * (looks > 1)}; what was seen stands above"


def _plan(text: str, store: str | None) -> Plan:
    """Read a plan: JSON, or the decision of a study.

    Raises:
        InputError: it is neither, or the plan is eager.
    """
    from torchwise.cli.lookup import find_decided
    from torchwise.errors import InputError
    from torchwise.plan import Plan

    plan = Plan.from_json(text) if text.lstrip().startswith("{") else find_decided(text, store)[1].plan
    if plan.is_eager:
        raise InputError("the plan leaves the model alone, so that there is nothing to bisect: leave --plan out")
    return plan
