"""Arguments and options that several commands share."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from torchwise.cli.common import check_writable
from torchwise.parsing import to_count

Target = Annotated[
    str,
    typer.Argument(
        help="zoo:family.name[@size], a model of timm:, torchvision:, hf: or diffusers:, package.module:factory or "
        "path/file.py:factory"
    ),
]
Study = Annotated[str, typer.Argument(help="Number of a stored study, `latest` (decided last), or a .json file.")]


def read_count(text: str | int) -> int:
    """Read a whole number, which may be written as 1e6."""
    found = to_count(text)
    if not isinstance(found, int):
        raise typer.BadParameter(f"{text!r} is no whole number, such as 1000 or 1e6")
    return found


def count_option(help: str) -> Any:
    """Return an option for a whole number."""
    return typer.Option(help=help, parser=read_count, metavar="N")


Calls = Annotated[int, count_option("Expected number of calls over the lifetime, such as 1e6.")]
Restarts = Annotated[
    int, count_option("Expected process starts over the lifetime. Each takes the time of a warm compile.")
]
Allow = Annotated[str, typer.Option(help="Permitted numerics: exact, same-precision, lower-precision or substituted.")]
Effort = Annotated[str, typer.Option(help="quick, standard or thorough.")]
Mode = Annotated[str, typer.Option(help="inference or training (with a backward pass).")]
Device = Annotated[str, typer.Option(help="cpu or cuda.", show_default="cuda where there is one")]
Seed = Annotated[int, typer.Option(help="Random seed of the weights and inputs that the factory makes.")]
Cold = Annotated[
    bool, typer.Option("--cold", help="Also time with cold processor caches, which are emptied before each call.")
]
Launcher = Annotated[str, typer.Option(help="process (this machine) or ray (one device of a Ray cluster).")]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of the Ray cluster: HOST:PORT, ray://HOST:PORT or auto.",
        show_default="RAY_ADDRESS, or this machine",
    ),
]
Store = Annotated[
    str | None, typer.Option(help="URL or file of the store.", show_default="in the user's data directory")
]
LockFile = Annotated[Path, typer.Option("--lock", help="The lock file.")]


def html_option(help: str) -> Any:
    """Return the option `--html FILE`, which refuses a file that cannot be written."""
    return typer.Option("--html", help=help, callback=_checked)


def json_option(help: str) -> Any:
    """Return the option `--json FILE`, which refuses a file that cannot be written.

    With -, JSON goes to standard output, and all messages of the command go to standard error.
    """
    return typer.Option("--json", help=f"{help}. - writes to standard output.", callback=_stream)


def former_option(former: str, now: str) -> Any:
    """Return an option by its former name. It is hidden, and says by which name it goes now."""

    def note(value: Any) -> Any:
        if value is not None:
            note_former_name(former, now)
        return value

    return typer.Option(former, hidden=True, callback=note)


def note_former_name(former: str, now: str) -> None:
    """Print a note that a command or an option has another name now."""
    typer.echo(f"torchwise: {former} is called {now} now", err=True)


def _checked(file: Path | None) -> Path | None:
    check_writable(file)
    return file


def _stream(ctx: typer.Context, file: Path | None) -> Path | None:
    if file != Path("-"):
        return _checked(file)
    from torchwise.records.files import STDOUT

    ctx.with_resource(contextlib.redirect_stdout(sys.stderr))  # otherwise no program could read the output
    return STDOUT
