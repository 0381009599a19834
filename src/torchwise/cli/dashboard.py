"""`torchwise dashboard`: show studies, decisions, histories and kernels in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from torchwise.cli.options import Store

PORT = 8501
"""Streamlit's default."""


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
    """Show the store in a browser: live progress, decisions, comparisons, histories, kernels and approvals.

    Exit codes: 0 stopped by the user, 1 the extra `dashboard` is missing, 2 invalid input.
    """
    from torchwise.dashboard.serve import is_this_machine, serve
    from torchwise.store import default_url, open_storage

    url = store or default_url()
    open_storage(url, existing=True).close()  # an unusable store is refused here, with a clear message
    serve(url, host, port, read_only=not is_this_machine(host) if read_only is None else read_only, browser=browser)
