"""`torchwise sweep`: tune many targets, one per device at a time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli.common import interruptible, write_document
from torchwise.cli.options import Address, Device, Launcher, Store, json_option

if TYPE_CHECKING:
    from torchwise.study.cluster import SweepResult


def sweep(
    manifest: Annotated[Path, typer.Argument(help="TOML file with targets, sizes, devices and options of tune.")],
    launcher: Launcher = "process",
    address: Address = None,
    device: Device = "",
    parallel: Annotated[
        int | None, typer.Option(help="Maximum number of simultaneous studies.", show_default="one per device")
    ] = None,
    store: Store = None,
    json: Annotated[Path | None, json_option("Write the studies as JSON (schema torchwise.sweep/1)")] = None,
) -> None:
    """Tune every target of a manifest, one study per device at a time.

    Each is tuned as `torchwise tune` does it. Results are stored as soon as they are known. After an interruption
    or a crash, the same command continues.

    Exit codes: 0 all studies are decided. 1 a study ended with another error. 2 invalid input, also of one target. 3 a
    model itself fails. 4 all studies ended, and at least one is inconclusive. 130 interrupted.
    """
    from torchwise.store import open_storage
    from torchwise.study.cluster import choice, read_manifest, run_sweep

    choice.check(launcher, address)
    tasks = read_manifest(manifest).with_device(device or choice.default_device(launcher, address)).tasks
    for task in tasks:
        task.request()  # refuse early what `tune` would refuse
    slots = choice.slots(launcher, address, parallel)
    choice.check_fit(tasks, slots)
    open_storage(store).close()  # an unusable store is refused here, once
    kept = "; finished trials are saved, and the same command continues"
    with interruptible(lambda: kept):
        done = run_sweep(tasks, slots, _command(), _environment(store), lambda line: typer.echo(line, err=True))
    if json:
        write_document(json, "torchwise.sweep/1", {"studies": [swept.to_dict() for swept in done]}, indent=1)
    for swept in done:
        typer.echo(f"{swept.task.name}: {swept.reason}")
    raise typer.Exit(_exit_code(done))


def _command() -> list[str]:
    """Return the command for a process that ends together with this one, and waits for the store."""
    own = (
        f"from torchwise.study.cluster.sweep import follow, retry_while_unreachable; follow({os.getpid()}); "
        "from torchwise.cli import app, main; "
        "main(lambda: retry_while_unreachable(app))"
    )
    return [sys.executable, "-c", own]


def _environment(store: str | None) -> dict[str, str]:
    """Return the environment of the studies.

    It contains the store's URL, as that may hold a password, which a list of processes would show.
    """
    from torchwise.store.location import VARIABLE

    return {**os.environ, **({VARIABLE: store} if store else {})}


def _exit_code(done: list[SweepResult]) -> int:
    from torchwise.records.answer import EXIT_INCONCLUSIVE

    codes = {swept.exit_code for swept in done if swept.exit_code}
    if not codes - {EXIT_INCONCLUSIVE}:
        return EXIT_INCONCLUSIVE if codes else 0
    return min(codes & {2, 3}, default=1)
