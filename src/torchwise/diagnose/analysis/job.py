"""What the workers of an analysis are told: plain data, which loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.trial import AroundJob, Job


@dataclass(frozen=True, slots=True)
class Look(AroundJob):
    """What a worker is told: start the job's plan warm, and look at call after call.

    Attributes:
        job: workload, plan, effort, and the caches that a try of this plan left.
    """

    job: Job

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return "torchwise.diagnose.analysis.steady:look"


@dataclass(frozen=True, slots=True)
class Scaling(AroundJob):
    """What a worker is told: try the job's plan on inputs of another batch size.

    Attributes:
        job: workload, plan, effort and empty caches.
        size: of the batch; None to find out only which dimension the batch is.
        dim: the dimension of the batch; None to find it.
    """

    job: Job
    size: int | None = None
    dim: int | None = None

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return f"torchwise.diagnose.analysis.scale:{'find' if self.size is None else 'attempt_at'}"
