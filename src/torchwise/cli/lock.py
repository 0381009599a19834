"""`torchwise lock`: write each model's plan into a file, for a team to review."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.files import check_writable
from torchwise.cli.options import Store

File = Annotated[Path, typer.Option("--lock", help="The lock file.")]


def lock(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TARGET", help="As they were tuned.", show_default="those that the file holds"),
    ] = None,
    file: File = Path("torchwise.lock"),
    store: Store = None,
) -> None:
    """Write what was decided for targets on this machine into a lock file; sections of other machines stay.

    Nothing is tuned: the last decision for each target comes from the store, and must be of this machine and of the
    software that is here.

    Exit codes: 0 written, 2 bad input, or a target without such a decision; then nothing is written.
    """
    from torchwise.errors import InputError
    from torchwise.lock import Lock, read, write
    from torchwise.lock.collect import collect
    from torchwise.store import open_storage

    check_writable(file)
    known = read(file) if file.exists() else Lock()
    wanted = targets or known.targets
    if not wanted:
        raise InputError(f"no target is given, and {file} holds none: torchwise lock TARGET, as it was tuned")
    with open_storage(store, existing=True) as storage:
        entries = collect(storage, wanted, storage.place if store else None)
    written = known.with_entries(entries)
    write(written, file)
    for entry in entries:
        typer.echo(f"{entry.decision.workload.target} ({entry.decision.workload.mode}): {entry.decision.reason}")
    kept = len(written.entries) - len(entries)
    typer.echo(f"Wrote {file}: {len(entries)} for this machine ({entries[0].hardware}), {kept} kept as they were.")
