"""What a plan costs to start in one run of a program, and when it is put in place."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from torchwise._torch.inductor import DEFAULT_CACHE_DIR
from torchwise.records import Decision
from torchwise.records import format as show
from torchwise.runtime.components.config import CompileConfig
from torchwise.runtime.components.statistics import ComponentStatistics

MIN_TOLD_S = 1.0
"""Seconds of a start from which it is told that they did not pay."""


@dataclass(slots=True)
class WaitingPlan:
    """A plan that holds for a module, and the calls that are made before it is in place."""

    decision: Decision
    others: Decision | None
    config: CompileConfig
    calls: int = 0

    @property
    def start_s(self) -> float:
        """The seconds that the plan takes to start: from warm caches, as a search keeps those of its plan."""
        return self.decision.cold_s if self.decision.warm_s is None else self.decision.warm_s

    @property
    def spent_s(self) -> float:
        """The seconds of the calls so far."""
        return self.calls * self.decision.baseline_s

    def explain(self, name: str) -> str:
        """Say why the module ran as written."""
        return (
            f"{name} ran as written: {self.decision.plan} takes {show.seconds(self.start_s)} to start, and "
            f"{show.pluralize(self.calls, 'call')} took about {show.seconds(self.spent_s)}. It is used once they have "
            "taken as long as its start"
        )


def keep_caches(folders: Iterable[str]) -> None:
    """Add compile caches of a plan's trial to those of this user, so that the plan starts from them in a program.

    Files that are there already stay. What cannot be copied is compiled again.
    """
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or DEFAULT_CACHE_DIR.get()()
    triton = os.environ.get("TRITON_CACHE_DIR") or os.path.join(inductor, "triton", "0")  # as Inductor sets it
    for folder in folders:
        for source, target in ((os.path.join(folder, "triton"), triton), (folder, inductor)):
            with contextlib.suppress(OSError):
                shutil.copytree(source, target, dirs_exist_ok=True, copy_function=_copy_new, ignore=_leave_triton)


def _leave_triton(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "triton"]


def _copy_new(source: str, target: str) -> None:
    if not os.path.exists(target):
        shutil.copy2(source, target)


def explain_loss(name: str, statistics: ComponentStatistics, decision: Decision) -> str | None:
    """Say that a plan took longer to start than its calls saved in this run, or return None if it did not."""
    if decision.speedup is None or decision.speedup.mid <= 1:
        return None
    saved_s = statistics.optimized * decision.baseline_s * (1 - 1 / decision.speedup.mid)
    if statistics.compile_s <= max(saved_s, MIN_TOLD_S):
        return None
    return (
        f"the plan of {name} took {show.seconds(statistics.compile_s)} to start in this run, and its calls saved about "
        f"{show.seconds(saved_s)}: it pays in longer runs"
    )
