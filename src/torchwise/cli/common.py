"""Functions that several commands share: output files that are checked first, Ctrl-C, and uncut help."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from torchwise.records import Study

UNCUT = 10_000
"""More characters than any sentence has, and than any line of a table."""


class Group(TyperGroup):
    """A group that lists its commands with their complete first sentences, on as many lines as needed."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list. Typer's own list cuts each sentence at the end of the line."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(UNCUT)) for name, one in found if one and not one.hidden])


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


def check_writable(file: Path | None) -> None:
    """Refuse a path that cannot be written, before minutes are spent on its contents.

    Raises:
        InputError: its folder does not exist or is not writable, or it is a folder itself.
    """
    if file is None:  # loads nothing, so that `torchwise zoo` is instant
        return
    import os
    import secrets

    from torchwise.errors import InputError
    from torchwise.records.files import STDOUT

    if file == STDOUT:
        return
    if file == Path("-"):
        raise InputError("- cannot be written: only --json can use standard output; give a file")
    if file.is_dir():
        raise InputError(f"{file} is a folder, but must be a file to write to")
    if not file.resolve().parent.is_dir():
        raise InputError(f"{file} cannot be written: there is no folder {file.resolve().parent}; create it first")
    if file.exists() and not file.is_file():  # a pipe or a device
        if not os.access(file, os.W_OK):
            raise InputError(f"{file} cannot be written: permission denied; give another path")
        return
    # Reading permissions is not enough, as file systems may be read-only. The name is like that of a draft of
    # `write_atomically`.
    probe = file.resolve().with_name(f".{file.resolve().name}.{secrets.token_hex(4)}.tmp")
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}; give another path") from None


def write_document(path: Path, schema: str, contents: dict[str, Any], indent: int = 2) -> None:
    """Write contents with their schema as JSON."""
    import json

    from torchwise.records.files import write_atomically

    write_atomically(f"{json.dumps({'schema': schema, **contents}, indent=indent)}\n", path)


def show_study(study: Study, json: Path | None, html: Path | None, **named: str | None) -> None:
    """Print a study, and write it to files."""
    from rich.console import Console

    from torchwise.records.files import write_atomically, write_json
    from torchwise.report import render_html, render_study

    Console().print(render_study(study, **named))
    if json:
        write_json(study, json)
    if html:
        write_atomically(render_html(study, **named), html)
