"""The jobs of a benchmark's workers, as plain data without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchwise.bench.contenders import Setting
from torchwise.trial import DerivedJob, Job

Step = Literal["contend", "warm", "duel"]


@dataclass(frozen=True, slots=True)
class ContenderJob(DerivedJob):
    """The job of timing one contender.

    Attributes:
        step: "contend" for a first run, "warm" for another start with the caches of that run, or "duel" with the rival.
        job: the workload, its traits, effort, caches and environment variables.
        contender: the contender's name.
        decision: Torchwise's decision as JSON.
        rival: the other contender's name in a duel.
    """

    FUNCTION = "torchwise.bench.contender_worker:{0.step}"
    step: Step
    job: Job
    contender: str
    decision: str = ""
    rival: str = ""

    @property
    def setting(self) -> Setting:
        """The conditions of the contender's run."""
        return Setting(self.job.workload.device, self.job.workload.mode, self.decision)


@dataclass(frozen=True, slots=True)
class HardwareSurvey(DerivedJob):
    """The job of measuring the hardware peaks of its device."""

    FUNCTION = "torchwise.bench.hardware_peaks:survey"
    job: Job
