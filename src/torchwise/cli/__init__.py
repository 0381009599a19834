"""The command line. Most commands have a file of their own.

Heavy imports stay inside the commands, so that `--help` is instant.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from torchwise import __version__
from torchwise.cli.analyze import analyze
from torchwise.cli.bench import bench
from torchwise.cli.bisect import bisect
from torchwise.cli.cache import cache
from torchwise.cli.common import Group, interruptible
from torchwise.cli.doctor import doctor
from torchwise.cli.explain import explain
from torchwise.cli.lock import check, lock
from torchwise.cli.plans import plans
from torchwise.cli.report import compare, dashboard, report
from torchwise.cli.run import NAMES_PROGRAM, RunCommand, run
from torchwise.cli.store import store
from torchwise.cli.sweep import sweep
from torchwise.cli.tune import tune
from torchwise.cli.verify import verify
from torchwise.cli.zoo import zoo
from torchwise.command_start import running_command
from torchwise.errors import ERROR_FILE, TorchwiseError


class Commands(Group):
    """The group of all commands.

    It adds the refused value to errors about numbers, which Typer may leave out, and handles Ctrl-C.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the named command."""
        try:
            with interruptible():
                return super().invoke(ctx)
        except typer.BadParameter as error:
            for detail in getattr(error.__cause__, "errors", list)():
                error.message = f"{detail['msg']}; it is {detail['input']!r}"
            raise


app = typer.Typer(
    name="torchwise",
    cls=Commands,
    help="Find the fastest verified way to run a PyTorch model on this machine, and measure its speed-up.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (tune, sweep, verify, doctor, analyze, explain, bisect, report, dashboard, bench, compare, lock, check, zoo)
for _command in _COMMANDS:
    app.command()(_command)
app.command(cls=RunCommand, context_settings=NAMES_PROGRAM)(run)
app.add_typer(plans, name="plans")
app.add_typer(cache, name="cache")
app.add_typer(store, name="store")


def _version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"torchwise {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that go before a command."""


def main(run: Callable[[], None] | None = None) -> None:
    """Run the command line.

    Exit codes: 0 decided, 2 invalid input, 3 the model itself fails, 130 interrupted. A program that runs the command,
    as `torchwise sweep` does, finds the message of an error in the file that `ERROR_FILE` names.

    Args:
        run: the function that parses the arguments and runs the command, by default `app`.
    """
    is_command = sys.argv[1:2] != ["run"]  # whose program keeps its streams as Python makes them, and its own time
    if is_command:
        _replace_unencodable()
    error_file = os.environ.pop(ERROR_FILE, "")  # processes that the command starts do not write there
    try:
        with running_command() if is_command else contextlib.nullcontext():
            _check_variables()
            (run or app)()
    except TorchwiseError as error:
        typer.echo(f"torchwise: {error}", err=True)
        if error_file:
            with contextlib.suppress(OSError):  # the exit code says enough
                Path(error_file).write_text(str(error), encoding="utf-8")
        sys.exit(error.exit_code)


def _check_variables() -> None:
    """Refuse a misspelt value at once, instead of in the first worker."""
    try:
        with interruptible():
            if os.environ.get("TORCHWISE_DEBUG"):
                from torchwise._torch.debug_logs import read_presets

                read_presets()
            if os.environ.get("TORCHWISE_PLUGINS"):
                from torchwise.plan.plug_ins import check_named

                check_named()
    except typer.Exit as end:  # Typer itself is not running yet
        sys.exit(end.exit_code)


def _replace_unencodable() -> None:
    """Print ? for characters that the output's encoding lacks, such as × in latin-1, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
