"""`torchwise store`: describe, copy and downgrade the database with the studies."""

from __future__ import annotations

from typing import Annotated

import typer

from torchwise.cli.common import Group
from torchwise.cli.options import Store, note_former_name

store = typer.Typer(cls=Group, help="Describe, copy or downgrade the database with the studies.", no_args_is_help=True)


@store.command("info")
def info(store: Store = None) -> None:
    """Show the location, size and schema of the store."""
    from torchwise.records.format import pluralize
    from torchwise.store import open_storage

    with open_storage(store, existing=True) as storage:
        studies, trials = storage.size()
        contents = f"{pluralize(studies, 'study')}, {pluralize(trials, 'trial')}"
        typer.echo(f"Store {storage.place}: {contents}, schema {storage.schema}.")


@store.command("copy")
def copy(
    to: Annotated[str, typer.Option(help="URL or file of the store to copy to. A missing file is created.")],
    store: Store = None,
) -> None:
    """Copy every study to another store.

    An example is from your own file to the PostgreSQL server of a team. Nothing is deleted in either store. Run the
    command again to copy newer studies.
    """
    from rich.console import Console
    from rich.progress import track

    from torchwise.errors import StorageError
    from torchwise.store import open_storage

    with open_storage(store, existing=True) as here, open_storage(to) as there:
        if here.place == there.place:
            raise StorageError(f"--store and --to are both {here.place}, but must be different stores")
        count, _ = here.size()
        console = Console(stderr=True)
        is_hidden = not console.is_terminal
        done = list(track(here.copy_to(there), "Copying", count, console=console, transient=True, disable=is_hidden))
    new, trials = sum(study.is_new for study in done), sum(study.trials for study in done)
    typer.echo(f"Copied to {there.place}: {new} of {len(done)} studies and {trials} trials were new there.")


@store.command("downgrade")
def downgrade(
    schema: Annotated[
        str,
        typer.Argument(help="The schema that the older version of Torchwise names in its error message, such as 0001."),
    ],
    delete_data: Annotated[
        bool,
        typer.Option(
            "--delete-data",
            help="Delete data that the older schema cannot hold: approvals, explanations, other reports.",
        ),
    ] = False,
    lose: Annotated[bool, typer.Option("--lose", hidden=True)] = False,
    store: Store = None,
) -> None:
    """Convert a store to an older schema.

    An older version of Torchwise can then read it. This version of Torchwise upgrades the store again on its next use.
    """
    from torchwise.store import downgrade_storage

    if lose:
        note_former_name("--lose", "--delete-data")
    typer.echo(f"Store {downgrade_storage(store, schema, lose=delete_data or lose)} has schema {schema} now.")
