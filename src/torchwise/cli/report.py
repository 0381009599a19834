"""`torchwise report`: show a stored study, or write it as a page or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.common import show_study
from torchwise.cli.options import Store, html_option, json_option


def report(
    study: Annotated[
        str, typer.Argument(help="Number of a stored study, `latest` (decided last), or a file written with --json.")
    ],
    html: Annotated[Path | None, html_option("Write the study as a self-contained page.")] = None,
    json: Annotated[Path | None, json_option("Write the study as JSON (schema torchwise.study/1)")] = None,
    store: Store = None,
) -> None:
    """Show a stored study: the decision, every candidate, and why each candidate lost."""
    from torchwise.cli.lookup import find_study
    from torchwise.store.location import place_of

    found = find_study(study, store)
    # The number in a file belongs to the store that the file came from.
    named = {"name": study} if study.endswith(".json") else {"store": place_of(store) if store else None}
    show_study(found, json, html, **named)
