"""`torchwise lock`: write the plan of each model into a file, for a team to review."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.common import check_writable
from torchwise.cli.options import LockFile, Store


def lock(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help="Targets to lock, by the names that were tuned.",
            show_default="all targets of the file",
        ),
    ] = None,
    file: LockFile = Path("torchwise.lock"),
    store: Store = None,
) -> None:
    """Write the decisions for targets on this machine into a lock file. Sections of other machines stay.

    Nothing is tuned. The last decision for each target is read from the store. It must be of this machine, with the
    software that is installed now.

    Exit codes: 0 written. 2 invalid input, or a target without such a decision: nothing is written.
    """
    from torchwise.errors import InputError
    from torchwise.store import open_storage
    from torchwise.study.lock import Lock, read, write
    from torchwise.study.lock.entry import collect

    check_writable(file)
    before = read(file) if file.exists() else Lock()
    names = targets or before.targets
    if not names:
        raise InputError(f"no target is given, and {file} holds none: torchwise lock TARGET, as it was tuned")
    with open_storage(store, existing=True) as storage:
        entries = collect(storage, names, storage.place if store else None)
    written = before.with_entries(entries)
    write(written, file)
    for entry in entries:
        typer.echo(f"{entry.decision.workload.target} ({entry.decision.workload.mode}): {entry.decision.reason}")
    kept = len(written.entries) - len(entries)
    typer.echo(f"Wrote {file}: {len(entries)} for this machine ({entries[0].hardware}), {kept} unchanged.")
