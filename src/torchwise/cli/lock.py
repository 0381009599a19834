"""`torchwise lock` and `check`: write the plan of each model into a file for review, and check that it still holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli.common import check_writable, interruptible
from torchwise.cli.options import Effort, FullGraph, LockFile, Store, complete_stored_target, json_option

if TYPE_CHECKING:
    from torchwise.environment import Environment
    from torchwise.records.listener import Listener
    from torchwise.study.lock import Lock
    from torchwise.study.lock.check import CheckRequest
    from torchwise.study.lock.check_results import Check
    from torchwise.trial.interpreter_launcher import InterpreterLauncher

LIMIT_S = 600.0
"""The same as `torchwise.study.lock.check.LIMIT_S`, whose import would load the launcher."""


def lock(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help="Targets to lock, by the names that were tuned.",
            show_default="all targets of the file",
            autocompletion=complete_stored_target,
        ),
    ] = None,
    file: LockFile = Path("torchwise.lock"),
    store: Store = None,
) -> None:
    """Write the decisions for this machine into a lock file.

    Sections of other machines stay. Nothing is tuned. The last decision for each target is read from the store. It must
    be of this machine, with the software that is installed now.

    Exit codes: 0 written. 2 invalid input, or a target without such a decision: nothing is written.
    """
    from torchwise.errors import InputError
    from torchwise.store import open_storage
    from torchwise.study.lock import Lock, read, write
    from torchwise.study.lock.entry import collect

    check_writable(file)
    before = read(file) if file.exists() else Lock()
    names = targets or before.targets
    if not names:
        raise InputError(f"no target is given, and {file} holds none: torchwise lock TARGET, as it was tuned")
    with open_storage(store, existing=True) as storage:
        entries = collect(storage, names, storage.place if store else None)
    written = before.with_entries(entries)
    write(written, file)
    for entry in entries:
        typer.echo(f"{entry.decision.workload.target} ({entry.decision.workload.mode}): {entry.decision.reason}")
    kept = len(written.entries) - len(entries)
    typer.echo(f"Wrote {file}: {len(entries)} for this machine ({entries[0].hardware}), {kept} unchanged.")


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help="Targets to check.",
            show_default="all targets of the file",
            autocompletion=complete_stored_target,
        ),
    ] = None,
    file: LockFile = Path("torchwise.lock"),
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="Skip timing, for machines whose timings are not reliable.")
    ] = False,
    threshold: Annotated[float, typer.Option(help="Relative change of speed that is ignored.")] = 0.05,
    effort: Effort = "standard",
    fullgraph: FullGraph = False,
    against_torch: Annotated[
        list[str] | None,
        typer.Option(
            "--against-torch",
            metavar="VERSION",
            help="Check on this version of PyTorch before an upgrade. An environment with it is made once, in the "
            "user's cache. Several are possible.",
            show_default="the installed one",
        ),
    ] = None,
    against_python: Annotated[
        list[str] | None,
        typer.Option(
            "--against-python",
            metavar="PATH",
            help="The same, with the interpreter of an environment of your own that has another PyTorch.",
            show_default="none",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="Make such environments with this interpreter.",
            show_default="this interpreter",
        ),
    ] = None,
    public: Annotated[
        list[str] | None,
        typer.Option(
            "--public",
            metavar="TARGET",
            help="Also check this function or model there, which needs no lock: its answers must be those of here. "
            "A factory gives its inputs, as for other commands. May be repeated.",
            show_default="none",
        ),
    ] = None,
    limit: Annotated[float, typer.Option(help="Time limit in seconds for one worker.")] = LIMIT_S,
    json: Annotated[Path | None, json_option("Write the result as JSON (schema torchwise.check/1)")] = None,
) -> None:
    """Check that locked plans are up to date, correct and no slower.

    A plan is stale if the machine, the software, the model or the inputs changed. Each plan of this machine is
    verified and timed again in its own process. The factories that the file names are imported and called.

    A plan is slower if its time per call and its speed-up over eager are both worse beyond the threshold. Both 95 %
    intervals, corrected for the number of plans, must show it in two processes. A plan is also slower if eager is
    faster now.

    With --against-torch or --against-python, each plan is verified on another PyTorch. It is timed there and here, in
    processes that take turns. The result says which plans become faster, slower or wrong, and what to pin.
    With --public, functions and models of yours are compared there with their answers here, and timed, too.

    Exit codes: 0 all plans are as locked. 1 a plan is stale, wrong, lost or slower, or with --fullgraph a graph breaks.
    2 invalid input, or a target could not be checked, such as one without a section for this machine. 4 inconclusive:
    the measurements cannot tell whether a plan is as fast as locked, and no other problem was found. 130 interrupted.
    """
    from rich.console import Console

    from torchwise.errors import InputError
    from torchwise.plan.workload_spec import check_form
    from torchwise.records.files import write_json
    from torchwise.study.lock import Lock, read
    from torchwise.study.lock.check import CheckRequest, run_check
    from torchwise.study.lock.check_results import CheckProgress, render_check
    from torchwise.trial import ProcessLauncher

    if python and not against_torch:
        raise InputError(f"python is {python!r}, but is only for --against-torch, whose environments it makes")
    if public and not (against_torch or against_python):
        raise InputError(f"public is {public[0]!r}, but is only for --against-torch and --against-python")
    for target in public or ():
        check_form(target)
    request = CheckRequest(tuple(targets or ()), not no_measure, threshold, effort, limit, fullgraph)
    lock = Lock() if public and not targets and not file.exists() else read(file)
    for target in targets or ():
        lock.select_entries(target)  # which refuses others, before an environment is made
    with interruptible(lambda: "; an unfinished check is not saved"), CheckProgress() as progress:
        if against_torch or against_python:
            others = _list_others(progress, against_torch or [], against_python or [], python)
            result = _check_upgrades(lock, request, progress, others, tuple(dict.fromkeys(public or ())))
        else:
            result = run_check(lock, request, ProcessLauncher(preloads=True), progress)
    if json:
        write_json(result, json)
    Console(highlight=False).print(render_check(result), soft_wrap=True)  # one line each, for searching and copying
    raise typer.Exit(result.exit_code)


def _list_others(
    listener: Listener, versions: list[str], pythons: list[str], python: str | None
) -> list[tuple[InterpreterLauncher, str | None]]:
    """Return the workers of each other environment, with the version of PyTorch that must be there."""
    from torchwise.study.lock.environments import make_environment
    from torchwise.trial.interpreter_launcher import InterpreterLauncher

    given = [InterpreterLauncher(one) for one in dict.fromkeys(pythons)]  # refused before anything is installed
    made = {one: InterpreterLauncher(make_environment(one, listener.note, python)) for one in versions}
    return [*((there, torch) for torch, there in made.items()), *((there, None) for there in given)]


def _check_upgrades(
    lock: Lock,
    request: CheckRequest,
    listener: Listener,
    others: list[tuple[InterpreterLauncher, str | None]],
    public: tuple[str, ...],
) -> Check:
    """Check the lock, and public functions, in each other environment, and return all results as one."""
    import sys
    from dataclasses import replace

    from torchwise.study.lock.public import check_public
    from torchwise.study.lock.upgrade import run_upgrade_check
    from torchwise.trial.interpreter_launcher import InterpreterLauncher

    here = InterpreterLauncher(sys.executable)
    # All are described first, so that one that cannot be used costs no results of the others.
    known = [(there, _describe_other(there, request.limit_s, listener, torch)) for there, torch in others]
    found = [run_upgrade_check(lock, request, here, there, listener, other) for there, other in known]
    found += [check_public(public, request, here, there, listener, there.python, other) for there, other in known]
    rows = dict.fromkeys(row for check in found for row in check.rows)  # what holds without any upgrade comes once
    return replace(found[0], rows=tuple(rows))


def _describe_other(there: InterpreterLauncher, limit_s: float, listener: Listener, torch: str | None) -> Environment:
    """Describe one of the other environments. An error names its interpreter."""
    from torchwise.errors import InputError
    from torchwise.study.lock.other_environment import describe_other

    try:
        return describe_other(there, limit_s, listener, torch)
    except InputError as error:
        raise InputError(f"{there.python}: {error}") from None
