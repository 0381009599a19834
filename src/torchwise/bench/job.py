"""What a benchmark's workers are told: plain data, which loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchwise.bench.contenders import Setting
from torchwise.trial import AroundJob, Job

Step = Literal["contend", "warm", "duel"]


@dataclass(frozen=True, slots=True)
class Contest(AroundJob):
    """What a worker is told.

    Attributes:
        step: "contend" alone, start once more "warm" from the caches of that and be timed again, or "duel" with the
            rival.
        job: workload, traits, effort, caches and variables.
        contender: its name.
        decision: for Torchwise, its decision as JSON.
        rival: for a duel, the other contender's name.
    """

    step: Step
    job: Job
    contender: str
    decision: str = ""
    rival: str = ""

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return f"torchwise.bench.contest:{self.step}"

    @property
    def setting(self) -> Setting:
        """Where the contender runs."""
        return Setting(self.job.workload.device, self.job.workload.mode, self.decision)


@dataclass(frozen=True, slots=True)
class Survey(AroundJob):
    """What a worker is told: measure the peaks of the job's device."""

    job: Job

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return "torchwise.bench.peaks:survey"
