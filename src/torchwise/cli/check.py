"""`torchwise check`: check whether locked plans still hold on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.files import check_writable
from torchwise.cli.interrupts import interruptible
from torchwise.cli.lock import File
from torchwise.cli.options import Effort, json_option

LIMIT_S = 600.0
"""The same as `torchwise.lock.check.LIMIT_S`, whose import would load the launcher."""


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TARGET", help="Which to check.", show_default="all that the file holds"),
    ] = None,
    file: File = Path("torchwise.lock"),
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="Time nothing, on a machine whose clock means nothing.")
    ] = False,
    threshold: Annotated[float, typer.Option(help="Relative change beyond which a plan is slower.")] = 0.05,
    effort: Effort = "standard",
    limit: Annotated[float, typer.Option(help="Seconds after which one worker is ended.")] = LIMIT_S,
    json: Annotated[Path | None, json_option("Write what was found (schema torchwise.check/1)")] = None,
) -> None:
    """Check that locked plans are fresh (machine, software, model, inputs), right, and not slower than locked.

    Each plan of this machine is proven and timed again in a process of its own. A plan is slower only if its time per
    call and its speed-up over eager both became worse beyond the threshold, by 95 % intervals that hold for all plans
    together, twice; or if eager is faster by now. The factories that the file names are imported and called.

    Exit codes: 0 all is as locked; 1 a plan is stale, wrong, lost or slower; 2 bad input, or something could not be
    checked, such as a target without a section for this machine; 4 inconclusive: the measurements cannot tell whether
    a plan is as fast as locked, and nothing else is amiss; 130 interrupted.
    """
    from rich.console import Console

    from torchwise.lock import read
    from torchwise.lock.check import CheckRequest, run_check
    from torchwise.lock.render import CheckProgress, render_check
    from torchwise.report.json_export import write_json
    from torchwise.trial import ProcessLauncher

    check_writable(json)
    request = CheckRequest(tuple(targets or ()), not no_measure, threshold, effort, limit)
    known = read(file)
    with interruptible(lambda: "; nothing is kept of a check"), CheckProgress() as progress:
        found = run_check(known, request, ProcessLauncher(), progress)
    if json:
        write_json(found, json)
    Console(highlight=False).print(render_check(found), soft_wrap=True)  # one line each, for searching and copying
    raise typer.Exit(found.exit_code)
