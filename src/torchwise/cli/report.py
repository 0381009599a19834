"""`torchwise report`, `compare` and `dashboard`: show what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.common import find_study, show_study
from torchwise.cli.options import Store, complete_study, html_option, json_option

PORT = 8501
"""Streamlit's default."""


def report(
    study: Annotated[
        str,
        typer.Argument(
            help="Number of a stored study, `latest` (decided last), or a file written with --json.",
            autocompletion=complete_study,
        ),
    ],
    html: Annotated[Path | None, html_option("Write the study as a self-contained page.")] = None,
    json: Annotated[Path | None, json_option("Write the study as JSON (schema torchwise.study/1)")] = None,
    store: Store = None,
) -> None:
    """Show a stored study, with every candidate and why it lost."""
    from torchwise.store.location import place_of

    found = find_study(study, store)
    # The number in a file belongs to the store that the file came from.
    named = {"name": study} if study.endswith(".json") else {"store": place_of(store) if store else None}
    show_study(found, json, html, **named)


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Before: a .json file that `torchwise bench` exported.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="After: another such file.")],
    threshold: Annotated[float, typer.Option(help="Relative change of speed that is ignored.")] = 0.05,
    json: Annotated[Path | None, json_option("Write the comparison as JSON (schema torchwise.comparison/1)")] = None,
) -> None:
    """Compare two benchmarks row by row, by 95 % intervals.

    The intervals are corrected for the number of rows. A contender is slower only if both its time and its time
    relative to eager grew. So a slower machine alone is no regression.

    Exit codes: 0 no row is slower, wrong or lost. 1 a row is slower, wrong or lost. 2 invalid input. 4 inconclusive:
    the measurements cannot tell for some rows, and no other row is slower, wrong or lost.
    """
    from rich.console import Console

    from torchwise.records import comparison
    from torchwise.records.files import write_json
    from torchwise.report import read_benchmark, render_comparison

    result = comparison.compare(read_benchmark(a), read_benchmark(b), threshold)
    Console(highlight=False).print(render_comparison(result))
    if json:
        write_json(result, json)
    raise typer.Exit(result.exit_code)


def dashboard(
    store: Store = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Unless it is local to this machine, the dashboard is read-only.")
    ] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = PORT,
    read_only: Annotated[
        bool | None,
        typer.Option(
            "--read-only/--writable",
            help="Whether visitors can pin, approve and reject plans. The dashboard asks for no password.",
            show_default="writable from this machine only",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Show the store in a browser, and approve plans there.

    It has live progress, decisions, comparisons, histories, kernels, approvals, analyses and benchmarks.

    Exit codes: 0 stopped by the user, 1 the extra `dashboard` is missing, 2 invalid input.
    """
    from torchwise.dashboard.serve import is_this_machine, serve
    from torchwise.store import default_url, open_storage

    url = store or default_url()
    open_storage(url, existing=True).close()  # an unusable store is refused here, with a clear message
    serve(url, host, port, read_only=not is_this_machine(host) if read_only is None else read_only, browser=browser)
