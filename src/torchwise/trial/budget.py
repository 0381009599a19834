"""The seconds of a whole command, and a launcher whose workers end with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchwise.records import Failure, FailureKind, WorkerStage
from torchwise.records import format as show
from torchwise.trial.launcher import Launcher, OnStage, ProcessLauncher
from torchwise.trial.limits import Limits
from torchwise.trial.run_trial import Stopwatch
from torchwise.trial.worker import Assignment

SLACK_S = 0.1
"""Seconds by which a worker's clock and that of the command may differ."""


@dataclass(slots=True)
class Budget:
    """The seconds that a command may take from its start.

    Attributes:
        seconds: of the whole command, or infinity.
        spent: counts them.
        can_wait: whether seconds in which another process has the device do not count.
        wait_option: the option for that, if the command has one.
        kept_s: seconds that are kept for another search of the same command.
    """

    seconds: float
    spent: Stopwatch
    can_wait: bool = False
    wait_option: str = ""
    kept_s: float = 0.0

    @property
    def now_s(self) -> float:
        """Seconds so far, as the budget counts them."""
        return self.spent.seconds if self.can_wait else self.spent.elapsed_s

    @property
    def left_s(self) -> float:
        """Seconds that are left, below 0 once it is spent."""
        return self.seconds - self.kept_s - self.now_s

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left_s <= 0

    def limit(self, launcher: Launcher) -> Launcher:
        """Return a launcher whose workers end with the budget."""
        return launcher if math.isinf(self.seconds) else _WithinBudget(launcher, self)

    def __str__(self) -> str:
        """Say that it is spent, and how much of it was waiting."""
        waited_s = 0.0 if self.can_wait else self.spent.waited_s
        option = f" ({self.wait_option} does not count that)" if self.wait_option else ""
        waiting = f", of which {show.seconds(waited_s)} went by waiting for another Torchwise process{option}"
        kept = f" but for {show.seconds(self.kept_s)}, which another search needs" if self.kept_s else ""
        return f"the budget of {show.tick(self.seconds)} is spent{kept}{waiting if waited_s >= 1 else ''}"


@dataclass(frozen=True, slots=True)
class _WithinBudget:
    launcher: Launcher
    budget: Budget

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
        """Run `job` for at most the rest of the budget. None is started if nothing is left."""
        left_s = self.budget.left_s
        if left_s <= 0:
            return Failure(FailureKind.OUT_OF_BUDGET, WorkerStage.START, str(self.budget))
        end_s = math.inf if self.budget.can_wait else left_s
        within = replace(limits, time_s=min(limits.time_s, left_s), end_s=min(limits.end_s, end_s))
        answer = self.launcher.run(job, within, on_stage)
        if isinstance(answer, Failure) and self._has_ended(answer):
            return replace(answer, kind=FailureKind.OUT_OF_BUDGET, message=str(self.budget))
        return answer

    def _has_ended(self, failure: Failure) -> bool:
        """Return whether the budget ended the worker, and not its own limit of time."""
        if failure.kind is FailureKind.INTERFERED:  # only a budget ends a wait
            return True
        return failure.kind is FailureKind.TIMED_OUT and self.budget.left_s <= SLACK_S


def end_kept_worker(launcher: Launcher) -> None:
    """End the worker that an inspection has left for a trial, also if a budget limits the launcher."""
    while isinstance(launcher, _WithinBudget):
        launcher = launcher.launcher
    if isinstance(launcher, ProcessLauncher):
        launcher.end_kept()
