"""Everything about one plan: baseline, compile cost, consistency, memory, scaling over batch sizes, and advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

import numpy as np
from msgspec import Meta

from torchwise.environment import Environment
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.answer import Answer, Trust, exceeds, judge_trust
from torchwise.records.codec import Document
from torchwise.records.measurement import Inspection, Measurement
from torchwise.records.shown import Shown
from torchwise.records.statistics import Amount, Count, Duration, Interval, Positive, Seconds
from torchwise.records.trial import CostModel, Costs, Trial, eager_measured

FAR_OUT = 3.0
"""Interquartile ranges above the third quartile beyond which a call is an outlier: Tukey's outer fence (Exploratory
Data Analysis, 1977)."""
CALLS_PER_TURN = 20
"""Calls of one side before it is the other's turn: enough that each finds the processor's caches as its own."""
EXCELLENT, GOOD, MAX_RISK = 10.0, 1.0, 0.01
"""Returns on compiling from which a plan is excellent or good, and the most probable loss of an excellent one."""
MARGIN = 0.2
"""Share to reserve on top of the measured peaks: for fragmentation, and for calls that were not measured."""


@dataclass(frozen=True, slots=True)
class Consistency:
    """How alike calls are. Raw samples in seconds are kept in the order of the calls, each of which was waited for."""

    calls_s: Annotated[tuple[Duration, ...], Meta(min_length=1)]

    def quantile(self, share: float) -> float:
        """Return the time in seconds that this share of the calls stays within."""
        return float(np.quantile(np.asarray(self.calls_s), share))

    def scale_to(self, median_s: float) -> Consistency:
        """Return the calls, scaled to have this median."""
        return self.scale_by(median_s / self.quantile(0.5))

    def scale_by(self, factor: float) -> Consistency:
        """Return the calls with each time multiplied by this factor."""
        return Consistency(tuple(seconds * factor for seconds in self.calls_s))

    def medians(self) -> tuple[float, ...]:
        """Return the median of each whole turn, or that of all calls if there is no whole turn."""
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
        """Change of the median from the first third of the calls to the last, or 0 for fewer than nine calls."""
        third = len(self.calls_s) // 3
        if third < 3:
            return 0.0
        return float(np.median(self.calls_s[-third:]) / np.median(self.calls_s[:third])) - 1

    @property
    def outliers(self) -> int:
        """Number of calls that lie far out."""
        first, last = np.quantile(np.asarray(self.calls_s), (0.25, 0.75))
        return int(np.sum(np.asarray(self.calls_s) > last + FAR_OUT * (last - first)))


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory held by a process that runs the plan, in bytes.

    Attributes:
        inputs: the largest example.
        start: peak of the first calls of a warm start, above the memory held before, or None if not measurable.
        call: peak of a steady call, above the memory held before it, or None if not measurable.
    """

    model: Count
    inputs: Count
    start: Count | None = None
    call: Count | None = None
    baseline_call: Count | None = None

    @property
    def overhead(self) -> int | None:
        """Bytes that a call needs beyond eager's, negative if it needs less."""
        return None if self.call is None or self.baseline_call is None else self.call - self.baseline_call

    @property
    def reserve(self) -> int | None:
        """Bytes to plan for: model, inputs and the highest peak, with a margin. Python and CUDA come on top."""
        peaks = [peak for peak in (self.start, self.call) if peak is not None]
        return round((self.model + self.inputs + max(peaks)) * (1 + MARGIN)) if peaks else None


@dataclass(frozen=True, slots=True)
class Steady:
    """Results of a second process, which started from the caches of the first.

    `warm_s` are the seconds that its first calls took beyond steady ones.
    """

    warm_s: Seconds
    plan: Consistency
    baseline: Consistency
    memory: Memory

    @property
    def paired(self) -> Measurement:
        """The medians of the plan's turns, each paired with eager's in the same turn."""
        pairs = list(zip(self.plan.medians(), self.baseline.medians(), strict=False))
        own, eager = zip(*pairs, strict=True)
        return Measurement(own, eager, CALLS_PER_TURN)


class Grade(StrEnum):
    """The worth of a plan in one word."""

    EXCELLENT = "excellent"
    """It earns at least ten times its compiling, and hardly ever loses."""
    GOOD = "good"
    """It earns at least its compiling again."""
    FAIR = "fair"
    """It pays, and earns less."""
    POOR = "poor"
    """It does not pay within the expected calls."""
    UNUSABLE = "unusable"
    """It failed, or is not right."""
    INCONCLUSIVE = "inconclusive"
    """The measurements cannot tell."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The plan on inputs of one batch size, or the reason why it was not timed.

    Attributes:
        eager: eager at this size against eager at the size of the examples, timed in alternation in one process, which
            puts all sizes on one scale. None in analyses of earlier versions, or if it could not be timed.
    """

    size: Positive
    measurement: Measurement | None = None
    costs: Costs | None = None
    reason: str = ""
    eager: Measurement | None = None


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """One batch size on one scale."""

    size: int
    eager_s: float
    speedup: Interval
    is_comparable: bool = True
    """Whether it is on the scale of the other sizes. Otherwise it was timed by itself, or is too uncertain."""

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
class Advice(Shown):
    """A piece of advice that follows from the figures."""

    rule: str
    text: str

    def __repr__(self) -> str:
        return f"<Advice {self.rule}: {self.text}>"


@dataclass(frozen=True, slots=True)
class Analysis(Document):
    """Everything about one plan.

    Attributes:
        workload: the request.
        environment: machine and software that it holds for.
        inspection: the plain model, which is the baseline.
        trial: the plan, cold: costs, verdict and measurement, or how it failed.
        steady: the plan, warm, or None if it was not verified, or failed.
        batches: one for each batch size that was asked for.
        batch_note: which dimension was scaled, or why none was.
        batch_size: batch size of the example inputs, or None if none was found, and in analyses of earlier versions.
        advice: most important first.
        effort: "quick", "standard" or "thorough".
        created_at: seconds since the epoch.
        seconds: time that the whole analysis took.
        trust: how far the figures could be trusted when it was written, for readers of JSON alone, or None in analyses
            of earlier versions.
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
    schema: str = "torchwise.analysis/1"

    def __repr__(self) -> str:
        return f"<Analysis of {self.plan} for {self.workload.target}: {self.advice[0].text if self.advice else ''}>"

    @property
    def plan(self) -> Plan:
        """The plan that was analysed."""
        return self.trial.plan

    @property
    def tried(self) -> Trial:
        """The trial, with the second process's measurement of the same plan: the two processes may disagree.

        The second process waits for each call. If there are several inputs, it times one of them.
        """
        alike = self.workload.objective == "latency" and len(self.inspection.inputs) == 1
        if self.steady is None or self.trial.measurement is None or not alike:
            return self.trial
        return replace(self.trial, repeats=(*self.trial.repeats, self.steady.paired))

    @property
    def eager(self) -> Measurement:
        """The measurement of eager that scales every other time: in the trial, unless it was disturbed there."""
        looked_at = self.inspection.measurement
        return eager_measured(self.trial.measurement, [looked_at]) if self.trial.measurement else looked_at

    @property
    def cost_model(self) -> CostModel:
        """Costs over the requested calls and restarts, on eager's scale."""
        baseline_s = self.eager.baseline_time.mid if self.eager.baseline_s else 0.0
        return CostModel(baseline_s, self.workload.calls, self.workload.restarts)

    @property
    def speedup(self) -> Interval | None:
        """Eager's time over the plan's, or None if it was not timed."""
        return self.tried.speedup

    @property
    def time(self) -> Interval | None:
        """Seconds per call of the plan: eager's over the speed-up, or None if it was not timed."""
        return self.cost_model.seconds_per_call(self.tried) if self.speedup else None

    @property
    def break_even_calls(self) -> Interval | None:
        """Calls after which the plan has paid for its compiling, or None if it may never, or was not timed."""
        return self.cost_model.break_even_calls(self.tried) if self.trial.is_verified else None

    @property
    def saved_s(self) -> float | None:
        """Seconds saved over all calls and restarts, minus compiling, or None if the plan was not verified.

        If the speed-up is too uncertain to name a figure, this is the lower bound.
        """
        if not self.trial.is_verified:
            return None
        return self.cost_model.compute_saving(self.tried)

    @property
    def return_on_compiling(self) -> Interval | None:
        """Net saving over the seconds of compiling, or None if nothing is compiled, or the plan was not verified."""
        is_compiled = self.trial.is_verified and not self.plan.is_eager
        return self.cost_model.return_on_compiling(self.tried) if is_compiled else None

    @property
    def probability_of_loss(self) -> float | None:
        """The probability that the plan does not pay within the expected calls, or None if it was not verified."""
        is_plan = self.trial.is_verified and not self.plan.is_eager
        return self.cost_model.probability_of_loss(self.tried) if is_plan else None

    @property
    def grade(self) -> Grade | None:
        """The worth of the plan in one word, or None for eager."""
        if self.plan.is_eager:
            return None
        if not self.trial.is_verified:
            return Grade.UNUSABLE
        if self.answer is not Answer.YES:
            return Grade.POOR if self.answer is Answer.NO else Grade.INCONCLUSIVE
        earned, risk = self.return_on_compiling, self.probability_of_loss
        if earned is None or (earned.low >= EXCELLENT and (risk or 0.0) <= MAX_RISK):
            return Grade.EXCELLENT
        return Grade.GOOD if earned.low >= GOOD else Grade.FAIR

    @property
    def answer(self) -> Answer:
        """Whether to use the plan: it is right, faster, and paid for within the expected calls."""
        if not self.trial.is_verified or self.plan.is_eager or self.speedup is None:
            return Answer.NO
        pays, is_faster = self.break_even_calls, exceeds(self.speedup)
        if is_faster is not Answer.YES or pays is None or pays.low <= 0:
            return is_faster
        calls = self.workload.calls
        return exceeds(Interval(calls / pays.high, calls / pays.mid, calls / pays.low))

    @property
    def calls(self) -> tuple[Consistency, Consistency] | None:
        """Each call of the plan and of eager, on the scale of the other times, or None if they were not timed."""
        if self.steady is None:
            return None
        own, eager = self.steady.plan, self.steady.baseline
        if not self.cost_model.baseline_s:
            return own, eager
        factor = self.cost_model.baseline_s / eager.quantile(0.5)
        is_figure = self.time is not None and self.time.is_usable
        scaled = own.scale_to(self.time.mid) if self.time is not None and is_figure else own.scale_by(factor)
        return scaled, eager.scale_by(factor)

    @property
    def timed_batches(self) -> Sequence[Batch]:
        """The timed batch sizes, smallest first."""
        return sorted((batch for batch in self.batches if batch.measurement), key=lambda batch: batch.size)

    @property
    def batch_figures(self) -> list[BatchFigures]:
        """The timed batch sizes in figures. At the batch size of the examples they are the plan's own figures."""
        return [self._figures(batch, batch.measurement) for batch in self.timed_batches if batch.measurement]

    def _figures(self, batch: Batch, measured: Measurement) -> BatchFigures:
        if batch.size == self.batch_size and self.speedup is not None:
            return BatchFigures(batch.size, self.cost_model.baseline_s, self.speedup)
        if batch.eager is None:
            return BatchFigures(batch.size, measured.baseline_time.mid, measured.speedup, is_comparable=False)
        relative, scale_s = batch.eager.speedup.inverse, self.cost_model.baseline_s
        return BatchFigures(batch.size, scale_s * relative.mid, measured.speedup, relative.is_usable)

    def judge_trust(self) -> Trust:
        """Return how far the figures can be trusted."""
        batches = [batch.measurement for batch in self.timed_batches if batch.measurement]
        measured = [
            self.inspection.measurement,
            *([self.trial.measurement] if self.trial.measurement else []),
            *batches,
        ]
        looked_at = [self.inspection.measurement.speedup] if self.inspection.measurement.baseline_s else []
        ratios = [self.speedup] if self.speedup else looked_at
        observed = [one.speedup for one in self.tried.processes] or looked_at
        notes = [note for one in measured for note in one.notes]
        return judge_trust(ratios, notes, observed)
