"""Contenders side by side on many targets: what a benchmark saw, row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.records.answer import Answer, Trust
from torchwise.records.bounds import Amount, Rate, Seconds
from torchwise.records.codec import Document
from torchwise.records.measurement import Measurement
from torchwise.records.processes import cold_speedup_across, is_faster_across, speedup_across
from torchwise.records.statistics import Interval
from torchwise.records.trial import Costs, Failure
from torchwise.records.verdict import Outcome, Verdict
from torchwise.workload import Roofline, WorkloadSpec

SCHEMA = "torchwise.bench/1"
EAGER = "eager"
TIED = 0.02
"""Share of a call's time by which two contenders must differ for one to be taken for the faster."""


class RowState(StrEnum):
    """What became of a contender on a target."""

    TIMED = "timed"
    FAILED = "failed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the hardware can do at the most, measured on the spot.

    Attributes:
        bandwidth: bytes read plus written per second by a large copy.
        flops: floating-point operations per second of a large matrix product, by dtype ("float32", "bfloat16", …).
    """

    bandwidth: Rate
    flops: dict[str, Amount] = field(default_factory=dict)

    def least_s(self, work: Roofline, dtype: str) -> float:
        """Return the seconds below which no program does this work here (Williams et al., Roofline, CACM 2009)."""
        rate = self.flops.get(dtype)
        return max(work.bytes / self.bandwidth, work.flops / rate if rate else 0.0)


@dataclass(frozen=True, slots=True)
class Performance:
    """What a worker found out about one contender.

    Attributes:
        costs: cold and warm first call, peak memory.
        verdict: on values, dtypes, strides, inputs written to.
        measurement: against eager, in alternation.
        overwrites: whether an answer is overwritten by the next call; else it may be held.
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
        """What was measured against eager, one measurement for each process."""
        return (self.measurement, *self.repeats)


@dataclass(frozen=True, slots=True)
class Row:
    """One contender on one target.

    Attributes:
        workload: the target, device, mode and objective.
        contender: its name.
        precision: class of its numbers: "native", or that of a plan which lowers it. Ratios stay within a class.
        state: what became of it.
        reason: in words, where it was not timed.
        performance: what was found, where it was timed.
        failure: how it ended, where it failed.
        plan: for Torchwise, what was decided.
        search_s: for Torchwise, seconds of search; None where it was given the plans to choose from.
        searched: for Torchwise, every plan that was tried or left out, with what became of it or why.
        rival: for Torchwise, the fastest other contender of its class that answers rightly; where two may be that, the
            one beside which Torchwise does worse.
        duel: Torchwise as the candidate and the rival as the baseline, in one process.
        duel_repeats: the same in further fresh processes.
        refused: whether the target itself cannot be used: that is bad input, and the contender was not tried.
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
        """What makes two rows of two benchmarks the same one."""
        work = self.workload
        return (work.target, work.device, work.mode, work.objective, self.contender)

    @property
    def is_timed(self) -> bool:
        """Whether it was timed; a contender that then fails to start from warm caches keeps its figures, and is not."""
        return self.state is RowState.TIMED and self.performance is not None

    @property
    def is_right(self) -> bool:
        """Whether it was timed and its answers passed."""
        return self.is_timed and self.performance is not None and self.performance.verdict.outcome is Outcome.PASS

    @property
    def is_its_rival(self) -> bool:
        """Whether Torchwise decided for eager, and eager is the rival: all that their duel shows is the clock."""
        return self.plan is not None and self.plan.is_eager and self.rival == EAGER

    @property
    def time(self) -> Interval | None:
        """Seconds per call in its own process; `records/scale.py` has them on one scale for all rows."""
        return self.performance.measurement.candidate_time if self.performance else None

    @property
    def speedup(self) -> Interval | None:
        """Eager's time over the contender's, as all processes that timed the two agree on."""
        return speedup_across(self.performance.processes, self.workload.device) if self.performance else None

    @property
    def cold_speedup(self) -> Interval | None:
        """The same with cold processor caches; None where that was not timed."""
        return cold_speedup_across(self.performance.processes, self.workload.device) if self.performance else None

    @property
    def is_faster(self) -> Answer | None:
        """Whether the contender is faster than eager; None where it was not timed."""
        return is_faster_across(self.performance.processes, self.workload.device) if self.performance else None

    @property
    def duels(self) -> tuple[Measurement, ...]:
        """Torchwise beside its rival, one measurement for each process."""
        return (self.duel, *self.duel_repeats) if self.duel else ()

    @property
    def speed_over_rival(self) -> Interval | None:
        """The rival's time over that of Torchwise, as all processes agree on that timed the two."""
        return speedup_across(self.duels, self.workload.device) if self.duel else None

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All that was timed for the row, against eager and against the rival."""
        return (*(self.performance.processes if self.performance else ()), *self.duels)

    @property
    def observed(self) -> tuple[Interval, ...]:
        """The ratios as each process saw them: how disturbed measuring was. How processes differ is not in them."""
        return tuple(measurement.speedup for measurement in self.measurements)


@dataclass(frozen=True, slots=True)
class Benchmark(Document):
    """A whole run: where, how fast the hardware is, and every row.

    Attributes:
        environment: the machine and its software.
        created_at: seconds since the epoch.
        peaks: how fast the hardware is; None where that was not measured.
        rows: every row.
        trust: how far its figures could be trusted when it was written (`records/scale.py`), for readers of JSON
            alone; None in those of earlier versions.
    """

    environment: Environment
    created_at: Amount
    peaks: Peaks | None = None
    rows: tuple[Row, ...] = ()
    trust: Trust | None = field(default=None, compare=False)
    schema: str = SCHEMA

    def of(self, workload: WorkloadSpec) -> tuple[Row, ...]:
        """Return the rows of one target, in the order in which they ran."""
        return tuple(row for row in self.rows if row.workload == workload)

    @property
    def workloads(self) -> tuple[WorkloadSpec, ...]:
        """The targets, each once, in order."""
        return tuple(dict.fromkeys(row.workload for row in self.rows))

    def check_read(self) -> None:
        """Refuse rows without samples, which give no time.

        Raises:
            InputError: there is one.
        """
        for row in self.rows:
            if not all(one.candidate_s for one in row.measurements):
                raise InputError(
                    f"the samples of {row.contender} on {row.workload.target} give no time: there must be at least one"
                )


def rival_of(rows: tuple[Row, ...], ours: Row) -> Row | None:
    """Return the fastest other contender of our precision class whose answers are right, by speed-up over eager."""
    return max(_others(rows, ours), key=lambda row: row.speedup.mid if row.speedup else 0.0, default=None)


def rivals_of(rows: tuple[Row, ...], ours: Row) -> list[Row]:
    """Return the one or two other contenders that may be the fastest: by speed-up over eager, and by time per call.

    Each can mislead, as every contender has a process of its own: a speed-up has eager's time in it, which an unsteady
    host changes by half from one process to the next, and a time has whatever held the host up meanwhile.
    """
    by_speedup = rival_of(rows, ours)
    if by_speedup is None or by_speedup.time is None:
        return []
    quickest = min(_others(rows, ours), key=lambda row: row.time.mid if row.time else math.inf)
    if quickest.time is None or quickest.time.mid >= (1 - TIED) * by_speedup.time.mid:
        return [by_speedup]
    return [by_speedup, quickest]


def _others(rows: tuple[Row, ...], ours: Row) -> list[Row]:
    return [row for row in rows if row.contender != ours.contender and row.precision == ours.precision and row.is_right]
