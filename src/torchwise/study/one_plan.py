"""A study of one plan without a store: an analysis, the check of a lock and a search for a batch size.

Nothing has to be asked or decided, but the trials are those of every study: tried, verified and timed by the same
workers, and failures are results.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, TypeVar

from torchwise.records import Failure, Inspection, Trial, TrialState
from torchwise.trial import Assignment, Job, Launcher, Limits, ask_worker, inspect_workload, try_plan
from torchwise.trial.full_graph import require_full_graph
from torchwise.trial.launcher import OnStage

T = TypeVar("T")


class PlanStudy:
    """The trials of one plan.

    Attributes:
        job: the order that all jobs are made from, with the workload's traits once it is inspected.

    Args:
        job: workload, plan and effort.
        launcher: where the workers run.
        limit_s: seconds after which a worker is ended.
        on_stage: called with each stage as it begins.
        compile_s: seconds after which a worker that still compiles is ended.
    """

    def __init__(
        self, job: Job, launcher: Launcher, limit_s: float, on_stage: OnStage, compile_s: float = math.inf
    ) -> None:
        self.job = job
        self._launcher, self._on_stage = launcher, on_stage
        self._limit_s, self._compile_s = limit_s, compile_s

    def inspect(self) -> Inspection:
        """Inspect the plain model. Raises as `inspect_workload` does."""
        job = replace(self.job, task="inspect")
        inspection = inspect_workload(self._launcher, job, self._limits(), self._on_stage)
        self.job = replace(self.job, traits=inspection.traits)
        return inspection

    def require_full_graph(self) -> None:
        """Raise a `GraphBreakError` if PyTorch cannot capture the workload as one graph."""
        require_full_graph(self._launcher, self.job, self._limits(), self._on_stage)

    def try_plan(self, **changes: Any) -> Trial:
        """Try the plan: compile, verify and time it. Its caches are its own unless the job names a folder.

        Args:
            **changes: fields of the job that differ in this trial.

        Raises:
            InputError: the target or its inputs cannot be used.
        """
        trial = Trial(0, self.job.plan, TrialState.RUNNING, started_at=time.time())
        job = replace(self.job, **changes)
        return try_plan(self._launcher, job, trial, self._limits(), self._on_stage, starts_again=lambda _: False)

    def ask(self, job: Assignment, kind: type[T]) -> T | Failure:
        """Have a worker do a further job, and return its answer of this kind, or how it failed."""
        return ask_worker(self._launcher, job, kind, self._limits(), self._on_stage)

    def _limits(self) -> Limits:
        return replace(Limits.from_free_memory(self._limit_s), compile_s=self._compile_s)
