"""Compile caches that a search's trials leave, kept for duels: of the few best, as those of all would fill a disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from torchwise.plan import Plan


class Caches:
    """A folder for each plan's caches; a context manager, which deletes all of them at its end.

    A plan is in it where its trial has left something: from a worker on another machine there is nothing.

    Args:
        within: the folder to be in, which somebody deletes should this process be killed; None for temporary files'.
    """

    def __init__(self, within: Path | None = None) -> None:
        self._folder = TemporaryDirectory(prefix="torchwise-caches-", dir=within, ignore_cleanup_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._folder.cleanup()

    def __contains__(self, plan: object) -> bool:
        return isinstance(plan, Plan) and self._of(plan).is_dir() and any(self._of(plan).iterdir())

    def new(self, plan: Plan) -> str:
        """Return an empty folder for the caches of a plan, whatever there was before."""
        shutil.rmtree(self._of(plan), ignore_errors=True)
        self._of(plan).mkdir(exist_ok=True)  # what could not be deleted is still there
        return str(self._of(plan))

    def of(self, *plans: Plan) -> list[str]:
        """Return the folders of those of these plans that are in it."""
        return [str(self._of(plan)) for plan in plans if plan in self]

    def keep(self, plans: Iterable[Plan]) -> None:
        """Delete the caches of all others."""
        kept = {plan.id for plan in plans}
        for folder in Path(self._folder.name).iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _of(self, plan: Plan) -> Path:
        return Path(self._folder.name, plan.id)
