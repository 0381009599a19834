"""Two benchmarks side by side: what became slower, faster, wrong, right, lost or gained, and what only drifted.

`torchwise.report.judged` says when a contender became slower. Eager's drift fails nothing; only where eager was timed
and no longer is, it is lost like any other.

A row that A timed and B has not counts as lost only if B holds both its target and, on any target, its contender: what
B was never asked to run is no regression, and is counted as not compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.errors import InputError
from torchwise.records import Interval, Measurement
from torchwise.records.benchmark import Benchmark, Row
from torchwise.records.bounds import Amount, Share
from torchwise.records.codec import Document
from torchwise.records.statistics import CONFIDENCE
from torchwise.report import format as show
from torchwise.report.bench.table import EAGER, answers_of
from torchwise.report.judged import THRESHOLD, Change, Judge

SCHEMA = "torchwise.comparison/1"


@dataclass(frozen=True, slots=True)
class Compared:
    """One row of both.

    Attributes:
        target: of the row, and so on: together its `Row.key`.
        change: what became of it.
        time: B's time per call over A's, with its interval; None where it was not judged by time.
        speedup: B's speed-up over eager over A's, likewise.
        detail: the figures or the reason, in words.
    """

    target: str
    device: str
    mode: str
    objective: str
    contender: str
    change: Change
    time: Interval | None = None
    speedup: Interval | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Comparison(Document):
    """Two benchmarks compared.

    Attributes:
        threshold: the relative change beyond which a row is slower or faster: 0.05 is 5 %.
        confidence: of every interval by itself, so that all hold together with 95 %.
        differences: between the environments, in words; figures of unlike environments say little.
        rows: every row of either.
    """

    threshold: Amount
    confidence: Share
    differences: tuple[str, ...]
    rows: tuple[Compared, ...]
    schema: str = SCHEMA

    def of(self, change: Change) -> tuple[Compared, ...]:
        """Return the rows of one kind."""
        return tuple(row for row in self.rows if row.change is change)

    @property
    def has_regressions(self) -> bool:
        """Whether anything became slower or wrong, or was lost."""
        return any(row.change.is_regression for row in self.rows)


def compare(a: Benchmark, b: Benchmark, threshold: float = THRESHOLD) -> Comparison:
    """Compare two benchmarks row by row, A before and B after.

    Args:
        a: before.
        b: after.
        threshold: relative change that is not worth a word.

    Raises:
        InputError: the threshold is not at least 0, or the two share no row.
    """
    if not 0 <= threshold < float("inf"):
        raise InputError(f"threshold is {threshold}, but must be at least 0: 0.05 is 5 %")
    before, after = ({row.key: row for row in benchmark.rows} for benchmark in (a, b))
    shared = [key for key in before if key in after]
    if not shared:
        raise InputError("the two benchmarks share no row, but need a target with a contender that is in both")
    timed = sum(_is_judged_by_time(before[key], after[key]) for key in shared)
    judge = Judge(threshold, 1 - (1 - CONFIDENCE) / max(timed, 1))
    rows = [_Rows(judge).compared(before[key], after[key]) for key in shared]
    rows += [_absent(row, b) for key, row in before.items() if key not in after]
    rows += [_compared(row, Change.NOT_COMPARED, "only in B") for key, row in after.items() if key not in before]
    differences = tuple(
        line.replace(" there,", " in A,").removesuffix(" here") + " in B"
        for line in a.environment.differences(b.environment)
    )
    return Comparison(threshold, judge.confidence, differences, tuple(rows))


@dataclass(frozen=True, slots=True)
class _Rows:
    judge: Judge

    def compared(self, a: Row, b: Row) -> Compared:
        if _is_judged_by_time(a, b):
            return self._by_time(a, b)
        if a.is_timed and not b.is_timed:
            return _compared(a, Change.LOST, f"{_state(b)}, and was {_state(a)}")
        if b.is_timed and not a.is_timed:
            return _compared(a, Change.GAINED, f"{_state(b)}, and was {_state(a)}")
        if a.is_right and not b.is_right:
            return _compared(a, Change.WRONG, _state(b))
        if b.is_right and not a.is_right:
            return _compared(a, Change.RIGHT, f"was {_state(a)}")
        if a.is_timed and a.precision != b.precision:
            return _compared(a, Change.NOT_COMPARED, f"{a.precision} in A, {b.precision} in B: never in one ratio")
        states = f"{_state(a)}, in both" if _state(a) == _state(b) else f"{_state(a)} in A, {_state(b)} in B"
        return _compared(a, Change.NOT_COMPARED, states)

    def _by_time(self, a: Row, b: Row) -> Compared:
        is_eager = a.contender == EAGER
        found = self.judge.judge(_measured(a), _measured(b), eager=is_eager)
        # Of a contender that drifted together with eager there is nothing to say: eager's own row says it.
        change = Change.SAME if found.change is Change.DRIFT and not is_eager else found.change
        return _compared(a, change, _figures(a, b, found.time, found.speedup), found.time, found.speedup)


def _is_judged_by_time(a: Row, b: Row) -> bool:
    """Whether both are timed, in one class, and right; of eager, answers are not judged."""
    if not (a.is_timed and b.is_timed and a.precision == b.precision):
        return False
    return a.contender == EAGER or (a.is_right and b.is_right)


def _absent(row: Row, b: Benchmark) -> Compared:
    has_target = any(other.key[:-1] == row.key[:-1] for other in b.rows)
    has_contender = any(other.contender == row.contender for other in b.rows)
    if row.is_timed and has_target and has_contender:
        return _compared(row, Change.LOST, "absent from B, which has its target and its contender")
    return _compared(row, Change.NOT_COMPARED, "only in A")


def _compared(
    row: Row, change: Change, detail: str, time: Interval | None = None, speedup: Interval | None = None
) -> Compared:
    return Compared(*row.key, change, time, speedup, show.one_line(detail))


def _state(row: Row) -> str:
    return ": ".join(filter(None, answers_of(row)))


def _measured(row: Row) -> Measurement:
    assert row.performance is not None
    return row.performance.measurement


def _figures(a: Row, b: Row, time: Interval, speedup: Interval) -> str:
    before, after = (show.seconds(row.time.mid if row.time else None) for row in (a, b))
    times = f"{before} to {after} per call"
    if a.contender == EAGER:
        return f"{show.speedup(time)} its time, {times}"
    return f"{show.speedup(time)} its time, {times}; {show.speedup(speedup)} its speed-up over eager"
