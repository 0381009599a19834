"""One plan in full: baseline, compile cost, consistency, memory, scaling over batch sizes, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from torchwise.environment import Environment
from torchwise.plan import Plan
from torchwise.records.bounds import Amount, Count, Duration, Positive, Seconds
from torchwise.records.codec import Document
from torchwise.records.economics import Economics
from torchwise.records.inspection import Inspection
from torchwise.records.measurement import Measurement
from torchwise.records.statistics import Interval
from torchwise.records.trial import Costs, Trial
from torchwise.workload import WorkloadSpec

SCHEMA = "torchwise.analysis/1"
FAR_OUT = 3.0
"""Interquartile ranges above the third quartile beyond which a call is an outlier: Tukey's outer fence (Exploratory
Data Analysis, 1977)."""
MARGIN = 0.2
"""Share on top of what was seen that is to be reserved: for fragmentation, and for what was not seen."""


@dataclass(frozen=True, slots=True)
class Consistency:
    """How alike calls are. Raw samples are kept, statistics derived.

    Attributes:
        calls_s: seconds of each call by itself, waited for, in the order in which they were made.
    """

    calls_s: Annotated[tuple[Duration, ...], Meta(min_length=1)]

    def quantile(self, share: float) -> float:
        """Return the seconds that this share of the calls stays within."""
        return float(np.quantile(np.asarray(self.calls_s), share))

    @property
    def mean(self) -> float:
        """Seconds per call over all calls, slow ones included."""
        return float(np.mean(self.calls_s))

    @property
    def variation(self) -> float:
        """Coefficient of variation: standard deviation over mean."""
        return float(np.std(self.calls_s)) / self.mean

    @property
    def drift(self) -> float:
        """Change of the median from the first third of the calls to the last; 0 where there are fewer than nine."""
        third = len(self.calls_s) // 3
        if third < 3:
            return 0.0
        return float(np.median(self.calls_s[-third:]) / np.median(self.calls_s[:third])) - 1

    @property
    def outliers(self) -> int:
        """Calls that lie far out."""
        first, last = np.quantile(np.asarray(self.calls_s), (0.25, 0.75))
        return int(np.sum(np.asarray(self.calls_s) > last + FAR_OUT * (last - first)))


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process that runs the plan holds, in bytes.

    Attributes:
        model: parameters and buffers.
        inputs: of the largest example.
        start: at the peak of the first calls of a warm start, above what was held before; None where not measurable.
        call: at the peak of a steady call, above what was held before it; None where not measurable.
        baseline_call: the same of eager.
    """

    model: Count
    inputs: Count
    start: Count | None = None
    call: Count | None = None
    baseline_call: Count | None = None

    @property
    def overhead(self) -> int | None:
        """What a call needs beyond eager's; negative where it needs less."""
        return None if self.call is None or self.baseline_call is None else self.call - self.baseline_call

    @property
    def reserve(self) -> int | None:
        """The planning figure: model, inputs and the highest peak, with a margin. Python and CUDA come on top."""
        peaks = [peak for peak in (self.start, self.call) if peak is not None]
        return round((self.model + self.inputs + max(peaks)) * (1 + MARGIN)) if peaks else None


@dataclass(frozen=True, slots=True)
class Steady:
    """What a second process saw that started from the caches of the first.

    Attributes:
        warm_s: seconds that its first calls took beyond steady ones.
        plan: each call of the plan.
        baseline: each call of eager, in turns with the plan's.
        memory: what the process holds.
    """

    warm_s: Seconds
    plan: Consistency
    baseline: Consistency
    memory: Memory


@dataclass(frozen=True, slots=True)
class Batch:
    """The plan on inputs of one batch size.

    Attributes:
        size: of the batch.
        measurement: against eager at this size; None where there is none.
        costs: of compiling for this size.
        reason: in words, why it was not timed.
    """

    size: Positive
    measurement: Measurement | None = None
    costs: Costs | None = None
    reason: str = ""

    @property
    def throughput(self) -> float | None:
        """Items per second of the plan."""
        return self.size / self.measurement.candidate_time.mid if self.measurement else None

    @property
    def baseline_throughput(self) -> float | None:
        """Items per second of eager."""
        return self.size / self.measurement.baseline_time.mid if self.measurement else None


@dataclass(frozen=True, slots=True)
class Advice:
    """What follows from the figures.

    Attributes:
        rule: its name, for programs.
        text: in words, with the figures.
    """

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Analysis(Document):
    """One plan in full.

    Attributes:
        workload: what was asked.
        environment: where it holds.
        inspection: the plain model: the baseline.
        trial: the plan, cold: costs, verdict and measurement, or how it failed.
        steady: the plan, warm; None where it was not proven, or failed.
        batches: one for each batch size that was asked for.
        batch_note: which dimension was scaled, or why none was.
        advice: what follows, the most important first.
        effort: "quick", "standard" or "thorough".
        created_at: seconds since the epoch.
        seconds: that all of it took.
    """

    workload: WorkloadSpec
    environment: Environment
    inspection: Inspection
    trial: Trial
    steady: Steady | None = None
    batches: tuple[Batch, ...] = ()
    batch_note: str = ""
    advice: tuple[Advice, ...] = ()
    effort: str = "standard"
    created_at: Amount = 0.0
    seconds: Seconds = 0.0
    schema: str = SCHEMA

    @property
    def plan(self) -> Plan:
        """What was analysed."""
        return self.trial.plan

    @property
    def economics(self) -> Economics:
        """Costs over the calls and restarts that were asked for, on the scale of eager beside the plan."""
        timed = self.trial.measurement or self.inspection.measurement
        return Economics(timed.baseline_time.mid, self.workload.calls, self.workload.restarts)

    @property
    def speedup(self) -> Interval | None:
        """Eager's time over the plan's; None where it was not timed."""
        return self.trial.speedup

    @property
    def break_even_calls(self) -> Interval | None:
        """Calls after which the plan has paid for its compiling; None where it may never, or was not timed."""
        return self.economics.break_even_calls(self.trial) if self.trial.is_proven else None

    @property
    def saved_s(self) -> float | None:
        """Seconds saved over all calls and restarts, compiling taken off; None where the plan was not proven."""
        if not self.trial.is_proven:
            return None
        return self.economics.saving(self.trial)

    @property
    def timed_batches(self) -> Sequence[Batch]:
        """The batch sizes that were timed, smallest first."""
        return sorted((batch for batch in self.batches if batch.measurement), key=lambda batch: batch.size)
