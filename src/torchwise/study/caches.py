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
        self._plans: set[Plan] = set()

    @property
    def plans(self) -> set[Plan]:
        """Those whose caches there are; where the worker was on another machine there are none."""
        return {plan for plan in self._plans if any(self._path(plan).iterdir())}

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="torchwise-caches-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._plans = None, set()

    def new(self, plan: Plan) -> str:
        """Return an empty folder for the caches of a plan, whatever there was before."""
        self._remove(plan)
        self._path(plan).mkdir()
        self._plans.add(plan)
        return str(self._path(plan))

    def of(self, plans: Collection[Plan]) -> list[str]:
        """Return the folders that there are for these plans."""
        return [str(self._path(plan)) for plan in plans if plan in self._plans]

    def keep(self, plans: Collection[Plan]) -> None:
        """Delete the caches of all others."""
        for plan in self._plans.difference(plans):
            self._remove(plan)

    def _remove(self, plan: Plan) -> None:
        shutil.rmtree(self._path(plan), ignore_errors=True)
        self._plans.discard(plan)

    def _path(self, plan: Plan) -> Path:
        assert self._folder is not None, "caches are kept while a search runs"
        return self._folder / plan.id
