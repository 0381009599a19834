"""What a plan costs to start in one run of a program, and when it is put in place."""

from __future__ import annotations

import contextlib
import os
import secrets
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

    @property
    def is_due(self) -> bool:
        """Whether the calls so far have taken as long as the plan takes to start, or it is needed from the first."""
        return self.decision.is_needed or self.spent_s >= self.start_s

    def explain(self, name: str) -> str:
        """Say why the module ran as written."""
        when = "Its next call would use it" if self.is_due else "It is used once they have taken as long as its start"
        return (
            f"{name} ran as written: {self.decision.plan} takes {show.seconds(self.start_s)} to start, and "
            f"{show.pluralize(self.calls, 'call')} took about {show.seconds(self.spent_s)}. {when}"
        )


def keep_caches(folders: Iterable[str]) -> None:
    """Add compile caches of a plan's trial to those of this user, so that the plan starts from them in a program.

    Files that are there already stay, and other programs never see half a file. What cannot be copied is compiled
    again.
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
    if os.path.exists(target):
        return
    folder, name = os.path.split(target)
    draft = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")  # an end amid the copy leaves no half of it
    try:
        shutil.copy2(source, draft)
        os.replace(draft, target)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)


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
