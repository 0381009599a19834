"""Handle Ctrl-C during a command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import typer


@contextlib.contextmanager
def interruptible(kept: Callable[[], str] = str) -> Iterator[None]:
    """End with exit code 130 on Ctrl-C, and print the stored results. Typer would end silently.

    Raises:
        Exit: Typer's error, with code 130.
    """
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"torchwise: interrupted{kept()}", err=True)
        raise typer.Exit(130) from None
