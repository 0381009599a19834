"""The jobs of an analysis's workers: plain data, which loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.trial import DerivedJob, Job


@dataclass(frozen=True, slots=True)
class SteadyRun(DerivedJob):
    """Has a worker start the job's plan warm, and time call after call.

    Attributes:
        job: workload, plan, effort, and the caches that a trial of this plan left.
    """

    job: Job

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return "torchwise.diagnose.analysis.steady:measure_steady"


@dataclass(frozen=True, slots=True)
class Scaling(DerivedJob):
    """Has a worker try the job's plan on inputs of another batch size.

    Attributes:
        job: workload, plan, effort and empty caches.
        size: of the batch, or None to find out only which dimension the batch is.
        dim: the dimension of the batch, or None to find it.
    """

    job: Job
    size: int | None = None
    dim: int | None = None

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return f"torchwise.diagnose.analysis.scale:{'find' if self.size is None else 'attempt_at'}"
