"""The shared options of several commands, with their names and meanings."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Target = Annotated[
    str,
    typer.Argument(
        help="zoo:family.name[@size], a model of timm:, torchvision:, hf: or diffusers:, package.module:factory or "
        "path/file.py:factory"
    ),
]
Study = Annotated[str, typer.Argument(help="Number of a stored study, `latest` (decided last), or a .json file.")]
Effort = Annotated[str, typer.Option(help="quick, standard or thorough.")]
Restarts = Annotated[int, typer.Option(help="Process starts over that lifetime; each pays the warm compile.")]
Mode = Annotated[str, typer.Option(help="inference or training (with a backward pass).")]
Device = Annotated[str, typer.Option(help="cpu or cuda.", show_default="cuda where there is one")]
Seed = Annotated[int, typer.Option(help="Seed of the weights and inputs that the factory draws.")]
Cold = Annotated[
    bool, typer.Option("--cold", help="Time with cold processor caches as well: emptied before each call.")
]
Store = Annotated[
    str | None, typer.Option(help="URL or file of the store.", show_default="in the user's data directory")
]


def _stream(ctx: typer.Context, file: Path | None) -> Path | None:
    if file != Path("-"):
        return file
    from torchwise.report.json_export import STDOUT

    ctx.with_resource(contextlib.redirect_stdout(sys.stderr))  # otherwise no program could read the output
    return STDOUT


def json_option(help: str) -> Any:
    """Return the option `--json FILE`.

    With -, JSON goes to standard output, and all messages of the command go to standard error.
    """
    return typer.Option("--json", help=f"{help}; - is standard output.", callback=_stream)
