"""One plan in full: baseline, compile cost, consistency, memory, scaling over batch sizes, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from msgspec import Meta

from torchwise.environment import Environment
from torchwise.plan import Plan
from torchwise.records.answer import Answer, Trust, exceeds, judge_trust
from torchwise.records.bounds import Amount, Count, Duration, Positive, Seconds
from torchwise.records.codec import Document
from torchwise.records.economics import Economics, eager_measured
from torchwise.records.inspection import Inspection
from torchwise.records.measurement import Measurement, find_disturbances
from torchwise.records.statistics import Interval
from torchwise.records.trial import Costs, Trial
from torchwise.workload import WorkloadSpec

SCHEMA = "torchwise.analysis/1"
FAR_OUT = 3.0
"""Interquartile ranges above the third quartile beyond which a call is an outlier: Tukey's outer fence (Exploratory
Data Analysis, 1977)."""
CALLS_PER_TURN = 20
"""Calls of one side before it is the other's turn: enough that each finds the processor's caches as its own."""
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

    def scaled_to(self, median_s: float) -> Consistency:
        """Return the calls as they would be with this median."""
        return self.scaled_by(median_s / self.quantile(0.5))

    def scaled_by(self, factor: float) -> Consistency:
        """Return the calls, each so many times as long."""
        return Consistency(tuple(seconds * factor for seconds in self.calls_s))

    def medians(self) -> tuple[float, ...]:
        """Return the median of each whole turn; of all calls where there is none."""
        turns = max(len(self.calls_s) // CALLS_PER_TURN, 1)
        chunks = np.array_split(np.asarray(self.calls_s[: turns * CALLS_PER_TURN]), turns)
        return tuple(float(np.median(chunk)) for chunk in chunks)

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

    @property
    def paired(self) -> Measurement:
        """The medians of the turns, each beside that of eager in its turn."""
        pairs = list(zip(self.plan.medians(), self.baseline.medians(), strict=False))
        own, eager = zip(*pairs, strict=True)
        return Measurement(own, eager, CALLS_PER_TURN)


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


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """One batch size on one scale.

    Attributes:
        size: of the batch.
        eager_s: seconds per call of eager at this size.
        speedup: over that.
    """

    size: int
    eager_s: float
    speedup: Interval

    @property
    def time(self) -> Interval:
        """Seconds per call of the plan."""
        return self.speedup.inverse.times(self.eager_s)

    @property
    def throughput(self) -> float:
        """Items per second of the plan."""
        return self.size / self.time.mid

    @property
    def baseline_throughput(self) -> float:
        """Items per second of eager."""
        return self.size / self.eager_s


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
        batch_size: of the inputs as they were given; None where none was found, and in those of earlier versions.
        advice: what follows, the most important first.
        effort: "quick", "standard" or "thorough".
        created_at: seconds since the epoch.
        seconds: that all of it took.
        trust: how far the figures could be trusted when it was written, for readers of JSON alone; None in those of
            earlier versions.
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
    batch_size: Positive | None = None
    trust: Trust | None = field(default=None, compare=False)
    schema: str = SCHEMA

    @property
    def plan(self) -> Plan:
        """What was analysed."""
        return self.trial.plan

    @property
    def tried(self) -> Trial:
        """The trial, with what the second process measured of the same: two of them may disagree.

        The second one waits for each call, and of several inputs it times one.
        """
        alike = self.workload.objective == "latency" and len(self.inspection.inputs) == 1
        if self.steady is None or self.trial.measurement is None or not alike:
            return self.trial
        return replace(self.trial, repeats=(*self.trial.repeats, self.steady.paired))

    @property
    def eager(self) -> Measurement:
        """What tells eager's time, by which every other time is shown: beside the plan, unless it was held up there."""
        looked_at = self.inspection.measurement
        return eager_measured(self.trial.measurement, [looked_at]) if self.trial.measurement else looked_at

    @property
    def economics(self) -> Economics:
        """Costs over the calls and restarts that were asked for, on the scale of eager."""
        baseline_s = self.eager.baseline_time.mid if self.eager.baseline_s else 0.0
        return Economics(baseline_s, self.workload.calls, self.workload.restarts)

    @property
    def speedup(self) -> Interval | None:
        """Eager's time over the plan's; None where it was not timed."""
        return self.tried.speedup

    @property
    def time(self) -> Interval | None:
        """Seconds per call of the plan: eager's over the speed-up; None where it was not timed."""
        return self.economics.seconds_per_call(self.tried) if self.speedup else None

    @property
    def break_even_calls(self) -> Interval | None:
        """Calls after which the plan has paid for its compiling; None where it may never, or was not timed."""
        return self.economics.break_even_calls(self.tried) if self.trial.is_proven else None

    @property
    def saved_s(self) -> float | None:
        """Seconds saved over all calls and restarts, compiling taken off; None where the plan was not proven.

        The least of them where the speed-up is no figure.
        """
        if not self.trial.is_proven:
            return None
        return self.economics.saving(self.tried)

    @property
    def answer(self) -> Answer:
        """Whether the plan is to be used: right, faster, and paid for within the calls that are expected."""
        if not self.trial.is_proven or self.plan.is_eager or self.speedup is None:
            return Answer.NO
        pays, is_faster = self.break_even_calls, exceeds(self.speedup)
        if is_faster is not Answer.YES or pays is None or pays.low <= 0:
            return is_faster
        calls = self.workload.calls
        return exceeds(Interval(calls / pays.high, calls / pays.mid, calls / pays.low))

    @property
    def calls(self) -> tuple[Consistency, Consistency] | None:
        """Call after call of the plan and of eager, on the scale of the other times; None where they were not timed."""
        if self.steady is None:
            return None
        own, eager = self.steady.plan, self.steady.baseline
        if not self.economics.baseline_s:
            return own, eager
        factor = self.economics.baseline_s / eager.quantile(0.5)
        is_figure = self.time is not None and self.time.is_usable
        scaled = own.scaled_to(self.time.mid) if self.time is not None and is_figure else own.scaled_by(factor)
        return scaled, eager.scaled_by(factor)

    @property
    def timed_batches(self) -> Sequence[Batch]:
        """The batch sizes that were timed, smallest first."""
        return sorted((batch for batch in self.batches if batch.measurement), key=lambda batch: batch.size)

    @property
    def batch_figures(self) -> list[BatchFigures]:
        """The same in figures; at the size of the inputs as they were given, those of the plan itself."""
        return [self._figures(batch, batch.measurement) for batch in self.timed_batches if batch.measurement]

    def _figures(self, batch: Batch, measured: Measurement) -> BatchFigures:
        if batch.size == self.batch_size and self.speedup is not None:
            return BatchFigures(batch.size, self.economics.baseline_s, self.speedup)
        return BatchFigures(batch.size, measured.baseline_time.mid, measured.speedup)

    def judge_trust(self) -> Trust:
        """Say how far the figures can be trusted."""
        batches = [batch.measurement for batch in self.timed_batches if batch.measurement]
        measured = [
            self.inspection.measurement,
            *([self.trial.measurement] if self.trial.measurement else []),
            *batches,
        ]
        looked_at = [self.inspection.measurement.speedup] if self.inspection.measurement.baseline_s else []
        ratios = [self.speedup] if self.speedup else looked_at
        observed = [one.speedup for one in self.tried.processes] or looked_at
        notes = find_disturbances(note for one in measured for note in one.notes)
        return judge_trust(ratios, notes, observed)
