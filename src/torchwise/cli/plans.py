"""`torchwise plans`: what was decided, for which models and machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

plans = typer.Typer(help="Stored decisions: list, show, diff, export, import, delete.", no_args_is_help=True)

StoreOption = Annotated[
    str | None, typer.Option(help="URL or file of the store.", show_default="in the user's data directory")
]
StudyArgument = Annotated[str, typer.Argument(help="Number of a stored study, `latest`, or a .json file.")]


@plans.command("list")
def list_plans(
    target: Annotated[str | None, typer.Option(help="Only studies of this target.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    store: StoreOption = None,
) -> None:
    """List studies with what was decided, newest first."""
    from rich.console import Console
    from rich.table import Table

    from torchwise.store import open_storage

    with open_storage(store) as storage:
        found = storage.list_studies(target, limit=limit + 1)
    summaries = found[:limit]
    if not summaries:
        typer.echo("The store holds no study yet: torchwise tune TARGET makes one.")
        return
    table = Table("study", "target", "device", "mode", "state", "trials", "plan", "speed-up")
    for row in summaries:
        speedup = str(row.speedup) if row.speedup else "–"
        cells = (row.id, row.target, row.device, row.mode, row.state, row.trials, row.plan or "–", speedup)
        table.add_row(*map(str, cells))
    Console().print(table)
    if len(found) > limit:
        typer.echo(f"These are the newest {limit}, and there are older ones: --limit N, --target TARGET.")


@plans.command("show")
def show(study: StudyArgument, store: StoreOption = None) -> None:
    """Show one decision in full, as JSON that `torchwise.Decision.from_json` reads."""
    from torchwise.cli.lookup import find_study
    from torchwise.errors import InputError

    found = find_study(study, store)
    if found.decision is None:
        raise InputError(f"study {study} is {found.state}, and has no decision yet: tune it again to go on")
    typer.echo(found.decision.to_json())


@plans.command("diff")
def diff(first: StudyArgument, second: StudyArgument, store: StoreOption = None) -> None:
    """Say in what two studies and their decisions differ."""
    from torchwise.cli.lookup import find_study

    a, b = find_study(first, store), find_study(second, store)
    lines = [
        f"environment: {line.replace(' there,', ' first,').replace(' here', ' second')}"
        for line in a.environment.differences(b.environment)
    ]
    pairs = [
        ("target", a.workload.target, b.workload.target),
        ("device", a.workload.device, b.workload.device),
        ("calls", a.workload.calls, b.workload.calls),
        ("restarts", a.workload.restarts, b.workload.restarts),
        ("model and inputs", a.inspection.identity, b.inspection.identity),
        ("plan", a.decision and str(a.decision.plan), b.decision and str(b.decision.plan)),
        ("speed-up", a.decision and str(a.decision.speedup), b.decision and str(b.decision.speedup)),
    ]
    lines += [f"{name}: {one} first, {other} second" for name, one, other in pairs if one != other]
    typer.echo("\n".join(lines) or "The two agree in everything.")


@plans.command("export")
def export(
    study: StudyArgument,
    file: Annotated[Path, typer.Argument(help="File to write, .json.")],
    store: StoreOption = None,
) -> None:
    """Write a study with all its trials to a file, for another machine or a colleague."""
    from torchwise.cli.lookup import find_study
    from torchwise.cli.tune import check_writable
    from torchwise.report import write_json

    check_writable(file)
    write_json(find_study(study, store), file)
    typer.echo(f"Wrote {file}.")


@plans.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="File that `plans export` or `tune --json` wrote.")],
    store: StoreOption = None,
) -> None:
    """Add a study from a file. On another machine its decision is stale: its plan is tried first, and proven anew."""
    from torchwise.cli.lookup import read_study
    from torchwise.store import open_storage

    study = read_study(file)
    with open_storage(store) as storage:
        added = storage.import_study(study)
    typer.echo(f"Study {added.id}: {study.workload.target}, {len(study.trials)} trials.")


@plans.command("delete")
def delete(study: Annotated[int, typer.Argument(help="Number of a stored study.")], store: StoreOption = None) -> None:
    """Delete a study with all its trials and its decision."""
    from torchwise.store import open_storage

    with open_storage(store) as storage:
        target = storage.get_study(study).workload.target
        storage.delete_study(study)
    typer.echo(f"Deleted study {study} of {target}.")
