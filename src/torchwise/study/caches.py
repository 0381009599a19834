"""What a running search keeps up: the compile caches of its best plans, and the heartbeats of its process."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from torchwise.plan import Plan
from torchwise.store import LeaseOwner, Storage


class Caches:
    """A folder for each plan's compile caches, and a context manager that deletes all of them at its end.

    Caches are kept for duels, and only those of the few best plans, as all of them would fill a disk.
    A plan is in it if its trial has left something: a worker on another machine leaves nothing.

    Args:
        within: the parent folder, which another process deletes if this one is killed, or None for the folder of
            temporary files.
    """

    def __init__(self, within: Path | None = None) -> None:
        self._folder = TemporaryDirectory(prefix="torchwise-caches-", dir=within, ignore_cleanup_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._folder.cleanup()

    def __contains__(self, plan: object) -> bool:
        return isinstance(plan, Plan) and self._folder_of(plan).is_dir() and any(self._folder_of(plan).iterdir())

    def new(self, plan: Plan) -> str:
        """Return an empty folder for the caches of a plan, without any earlier content."""
        shutil.rmtree(self._folder_of(plan), ignore_errors=True)
        self._folder_of(plan).mkdir(exist_ok=True)  # files that could not be deleted are still there
        return str(self._folder_of(plan))

    def list_folders(self, *plans: Plan) -> list[str]:
        """Return the folders of those plans that are in it."""
        return [str(self._folder_of(plan)) for plan in plans if plan in self]

    def keep(self, plans: Iterable[Plan]) -> None:
        """Delete the caches of all other plans."""
        kept = {plan.id for plan in plans}
        for folder in Path(self._folder.name).iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder_of(self, plan: Plan) -> Path:
        return Path(self._folder.name, plan.id)


HEARTBEAT_S = 30.0


@contextmanager
def keep_heartbeat(storage: Storage, owner: LeaseOwner) -> Iterator[None]:
    """Send the owner's heartbeats from a thread while the block runs: processes on other hosts cannot look."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_S):
            storage.heartbeat(owner)

    thread = threading.Thread(target=beat, daemon=True, name="torchwise-heartbeat")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
