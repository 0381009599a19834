"""`torchwise store`: the place of studies, and ways to move them."""

from __future__ import annotations

from typing import Annotated

import typer

from torchwise.cli.groups import Group
from torchwise.cli.options import Store

store = typer.Typer(cls=Group, help="Where studies are kept: info, copy, downgrade.", no_args_is_help=True)


@store.command("info")
def info(store: Store = None) -> None:
    """Say which store is in use, what it holds, and of which schema it is."""
    from torchwise.report.format import pluralize
    from torchwise.store import open_storage

    with open_storage(store, existing=True) as storage:
        studies, trials = storage.size()
        held = f"{pluralize(studies, 'study')}, {pluralize(trials, 'trial')}"
        typer.echo(f"Store {storage.place}: {held}, schema {storage.schema}.")


@store.command("copy")
def copy(
    to: Annotated[str, typer.Option(help="URL or file of the store to copy to, made where there is none.")],
    store: Store = None,
) -> None:
    """Copy every study to another store, such as from the file of one person to a team's PostgreSQL.

    Nothing is taken away here or there. The same command again copies what has come since.
    """
    from rich.console import Console
    from rich.progress import track

    from torchwise.errors import StorageError
    from torchwise.store import open_storage

    with open_storage(store, existing=True) as here, open_storage(to) as there:
        if here.place == there.place:
            raise StorageError(f"store and --to are both {here.place}, but must be two stores")
        count, _ = here.size()
        console = Console(stderr=True)
        unseen = not console.is_terminal
        done = list(track(here.copy_to(there), "Copying", count, console=console, transient=True, disable=unseen))
    made, trials = sum(study.is_new for study in done), sum(study.trials for study in done)
    typer.echo(f"Copied to {there.place}: {made} of {len(done)} studies and {trials} trials were new there.")


@store.command("downgrade")
def downgrade(
    schema: Annotated[str, typer.Argument(help="The schema that the older Torchwise says it knows, such as 0001.")],
    lose: Annotated[
        bool, typer.Option("--lose", help="Delete what that schema has no place for: rulings, kept explanations.")
    ] = False,
    store: Store = None,
) -> None:
    """Take a store back to an older schema, for colleagues with an older Torchwise. This one then upgrades it again."""
    from torchwise.store import downgrade_storage

    typer.echo(f"Store {downgrade_storage(store, schema, lose=lose)} has schema {schema} now.")
