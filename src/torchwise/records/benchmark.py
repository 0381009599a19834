"""Results of a benchmark, row by row: contenders side by side on many targets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import Roofline, WorkloadSpec
from torchwise.records.answer import Answer, Trust
from torchwise.records.codec import Document
from torchwise.records.measurement import Measurement
from torchwise.records.processes import cold_speedup_across, is_faster_across, speedup_across
from torchwise.records.statistics import Amount, Interval, Rate, Seconds
from torchwise.records.trial import Costs, Failure
from torchwise.records.verdict import Outcome, Verdict

EAGER = "eager"
TORCHWISE = "torchwise"
"""The contender that chooses a plan."""
PERMITTED = "permitted"
"""The level of all contenders of a workload with a tolerance, or another rule by which changes are permitted."""
TIED = 0.02
"""Share of a call's time by which two contenders must differ for one to be taken for the faster."""


class RowState(StrEnum):
    """Outcome of a contender on a target."""

    TIMED = "timed"
    FAILED = "failed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that the hardware can do, measured on the spot.

    Attributes:
        bandwidth: bytes read plus written per second by a large copy.
        flops: floating-point operations per second of a large matrix product, by dtype ("float32", "bfloat16", …).
    """

    bandwidth: Rate
    flops: dict[str, Amount] = field(default_factory=dict)

    def least_s(self, work: Roofline, dtype: str) -> float:
        """Return the minimum seconds of any program for this work here (Williams et al., Roofline, CACM 2009)."""
        rate = self.flops.get(dtype)
        return max(work.bytes / self.bandwidth, work.flops / rate if rate else 0.0)


@dataclass(frozen=True, slots=True)
class Performance:
    """A worker's findings about one contender.

    Attributes:
        measurement: against eager, in alternation.
        overwrites: whether the next call overwrites an answer. If not, the answer may be kept.
        dtype: of the workload's numbers.
        roofline: least work per call, where known.
        repeats: against eager in further fresh processes.
    """

    costs: Costs
    verdict: Verdict
    measurement: Measurement
    overwrites: bool
    dtype: str
    roofline: Roofline | None = None
    repeats: tuple[Measurement, ...] = ()

    @property
    def processes(self) -> tuple[Measurement, ...]:
        """The measurements against eager, one for each process."""
        return (self.measurement, *self.repeats)


@dataclass(frozen=True, slots=True)
class Row:
    """One contender on one target.

    Attributes:
        precision: its numeric precision: "native", or that of a plan which lowers it.
        reason: why it was not timed, in words.
        performance: the worker's findings, if it was timed.
        plan: for Torchwise, the chosen plan.
        search_s: for Torchwise, seconds of search, or None if the request listed the plans.
        searched: for Torchwise, every plan that was tried or left out, with its outcome or the reason.
        rival: for Torchwise, the fastest other contender of its level with right answers. If two may be the fastest, it
            is the one against which Torchwise does worse.
        duel: Torchwise as the candidate and the rival as the baseline, in one process.
        duel_repeats: the same in further fresh processes.
        refused: whether the target itself cannot be used. That is bad input, and the contender was not tried.
    """

    workload: WorkloadSpec
    contender: str
    precision: str = "native"
    state: RowState = RowState.TIMED
    reason: str = ""
    performance: Performance | None = None
    failure: Failure | None = None
    plan: Plan | None = None
    search_s: Seconds | None = None
    searched: tuple[str, ...] = ()
    rival: str | None = None
    duel: Measurement | None = None
    duel_repeats: tuple[Measurement, ...] = ()
    refused: bool = False

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Key that identifies the same row in two benchmarks."""
        work = self.workload
        return (work.target, work.device, work.mode, work.objective, self.contender)

    @property
    def level(self) -> str:
        """The numerics within which contenders are compared: those that the user's own rule permits, or a precision."""
        return PERMITTED if self.workload.permits_change else self.precision

    @property
    def is_timed(self) -> bool:
        """Whether it was timed. A contender that then fails to start from warm caches keeps its figures, but is not."""
        return self.state is RowState.TIMED and self.performance is not None

    @property
    def is_right(self) -> bool:
        """Whether it was timed and its answers passed."""
        return self.is_timed and self.performance is not None and self.performance.verdict.outcome is Outcome.PASS

    @property
    def answers(self) -> tuple[str, str]:
        """The state of its answers in a word or two, and the reason for it."""
        if not self.is_timed or self.performance is None:
            return self.state.value, self.reason
        verdict = self.performance.verdict
        if verdict.outcome is not Outcome.PASS:
            return ("not right" if verdict.outcome is Outcome.FAIL else "not comparable"), verdict.reason
        if self.performance.overwrites:
            return "passed, overwritten", "the next call overwrites the answer"
        return "passed", ""

    @property
    def answer_text(self) -> str:
        """The state of its answers with the reason for it."""
        return ": ".join(filter(None, self.answers))

    @property
    def is_its_rival(self) -> bool:
        """Whether Torchwise chose eager, and eager is the rival: then their duel shows only the clock's error."""
        return self.plan is not None and self.plan.is_eager and self.rival == EAGER

    @property
    def time(self) -> Interval | None:
        """Seconds per call in its own process. `records/scale.py` has all rows on one scale."""
        return self.performance.measurement.candidate_time if self.performance else None

    @property
    def speedup(self) -> Interval | None:
        """Eager's time over the contender's, agreed on by all processes that timed the two."""
        return speedup_across(self.performance.processes, self.workload.device) if self.performance else None

    @property
    def cold_speedup(self) -> Interval | None:
        """The speed-up with cold processor caches, or None if that was not timed."""
        return cold_speedup_across(self.performance.processes, self.workload.device) if self.performance else None

    @property
    def is_faster(self) -> Answer | None:
        """Whether the contender is faster than eager, or None if it was not timed."""
        return is_faster_across(self.performance.processes, self.workload.device) if self.performance else None

    @property
    def duels(self) -> tuple[Measurement, ...]:
        """Torchwise against its rival, one measurement for each process."""
        return (self.duel, *self.duel_repeats) if self.duel else ()

    @property
    def speed_over_rival(self) -> Interval | None:
        """The rival's time over Torchwise's, agreed on by all processes that timed the two."""
        return speedup_across(self.duels, self.workload.device) if self.duel else None

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All measurements of the row, against eager and against the rival."""
        return (*(self.performance.processes if self.performance else ()), *self.duels)

    @property
    def observed(self) -> tuple[Interval, ...]:
        """The ratios as each process saw them: how disturbed measuring was. How processes differ is left out."""
        return tuple(measurement.speedup for measurement in self.measurements)


@dataclass(frozen=True, slots=True)
class Benchmark(Document):
    """A whole run: the machine, its hardware peaks, and every row.

    Attributes:
        created_at: seconds since the epoch.
        peaks: the hardware's peaks, or None if they were not measured.
        trust: how far its figures could be trusted when it was written (`records/scale.py`), for readers of JSON alone,
            or None in those of earlier versions.
    """

    environment: Environment
    created_at: Amount
    peaks: Peaks | None = None
    rows: tuple[Row, ...] = ()
    trust: Trust | None = field(default=None, compare=False)
    schema: str = "torchwise.bench/1"

    def __repr__(self) -> str:
        rows, targets = len(self.rows), len(self.workloads)
        return f"<Benchmark of {targets} target{'s' * (targets != 1)}, {rows} row{'s' * (rows != 1)}>"

    def select_rows(self, workload: WorkloadSpec) -> tuple[Row, ...]:
        """Return the rows of one target, in the order in which they ran."""
        return tuple(row for row in self.rows if row.workload == workload)

    @property
    def workloads(self) -> tuple[WorkloadSpec, ...]:
        """The targets in order, each once."""
        return tuple(dict.fromkeys(row.workload for row in self.rows))

    def check_read(self) -> None:
        """Refuse rows without samples, which give no time."""
        for row in self.rows:
            if not all(one.candidate_s for one in row.measurements):
                raise InputError(
                    f"the samples of {row.contender} on {row.workload.target} give no time: there must be at least one"
                )


def rival_of(rows: tuple[Row, ...], own: Row) -> Row | None:
    """Return the fastest other contender of the same level with right answers, by speed-up over eager."""
    return max(_others(rows, own), key=lambda row: row.speedup.mid if row.speedup else 0.0, default=None)


def rivals_of(rows: tuple[Row, ...], own: Row) -> list[Row]:
    """Return the one or two other contenders that may be the fastest: by speed-up over eager, and by time per call.

    Each can mislead, as every contender has a process of its own. A speed-up includes eager's time, which an unsteady
    host changes by half from one process to the next. A time includes every delay of the host meanwhile.
    """
    by_speedup = rival_of(rows, own)
    if by_speedup is None or by_speedup.time is None:
        return []
    quickest = min(_others(rows, own), key=lambda row: row.time.mid if row.time else math.inf)
    if quickest.time is None or quickest.time.mid >= (1 - TIED) * by_speedup.time.mid:
        return [by_speedup]
    return [by_speedup, quickest]


def _others(rows: tuple[Row, ...], own: Row) -> list[Row]:
    return [row for row in rows if row.contender != own.contender and row.level == own.level and row.is_right]
