"""Compile caches that a search's trials leave, kept for duels: of the few best, as those of all would fill a disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from torchwise.plan import Plan


class Caches:
    """A folder for each plan's caches; a context manager, which deletes all of them at its end."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self.plans: set[Plan] = set()
        """Those whose caches there are."""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="torchwise-caches-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self.plans = None, set()

    def new(self, plan: Plan) -> str:
        """Return an empty folder for the caches of a plan, whatever there was before."""
        self._remove(plan)
        self._path(plan).mkdir()
        self.plans.add(plan)
        return str(self._path(plan))

    def of(self, plans: Collection[Plan]) -> list[str]:
        """Return the folders that there are for these plans."""
        return [str(self._path(plan)) for plan in plans if plan in self.plans]

    def keep(self, plans: Collection[Plan]) -> None:
        """Delete the caches of all others."""
        for plan in self.plans.difference(plans):
            self._remove(plan)

    def _remove(self, plan: Plan) -> None:
        shutil.rmtree(self._path(plan), ignore_errors=True)
        self.plans.discard(plan)

    def _path(self, plan: Plan) -> Path:
        assert self._folder is not None, "caches are kept while a search runs"
        return self._folder / plan.id
