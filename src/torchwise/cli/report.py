"""`torchwise report`: show a stored study, or write it as a page or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.files import check_writable
from torchwise.cli.options import Store, json_option


def report(
    study: Annotated[
        str, typer.Argument(help="Number of a stored study, `latest` (decided last), or a file written with --json.")
    ],
    html: Annotated[Path | None, typer.Option(help="Write the study as a self-contained page.")] = None,
    json: Annotated[Path | None, json_option("Write the study as JSON (schema torchwise.study/1)")] = None,
    store: Store = None,
) -> None:
    """Show a stored study: the decision, every candidate, and why each candidate lost."""
    from rich.console import Console

    from torchwise.cli.lookup import find_study
    from torchwise.records.files import write_atomically, write_json
    from torchwise.report import render_html, render_study
    from torchwise.store.location import place_of

    for file in (json, html):
        check_writable(file)
    found = find_study(study, store)
    # The number in a file belongs to the store that the file came from.
    named = {"name": study} if study.endswith(".json") else {"store": place_of(store) if store else None}
    Console().print(render_study(found, **named))
    if json:
        write_json(found, json)
    if html:
        write_atomically(render_html(found, **named), html)
