"""Two benchmarks side by side: rows that became slower, faster, wrong or right, were lost or gained, or drifted.

`records/answer.py` defines when a contender became slower. Drift of eager is no regression. If eager was
timed only in A, it is lost like any other contender.

A row that only A timed counts as lost under two conditions. B must have its target, and B must have its contender on
any target. Otherwise the row was not part of B. It is no regression, and is counted as not compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.errors import InputError
from torchwise.records import Interval
from torchwise.records import format as show
from torchwise.records.answer import EXIT_INCONCLUSIVE, THRESHOLD, Answer, Change, Judge, Timing, Trust, judge_trust
from torchwise.records.benchmark import EAGER, Benchmark, Row
from torchwise.records.codec import Document
from torchwise.records.scale import scale_of
from torchwise.records.statistics import CONFIDENCE, Amount, Share


@dataclass(frozen=True, slots=True)
class RowComparison:
    """One row of both benchmarks.

    Attributes:
        target: the target. It is the first part of the row's `Row.key`, and the next four fields are the rest.
        time: B's time per call over A's, each in its own process, or None if it was not judged by time.
        speedup: B's speed-up over eager, divided by A's, or None likewise.
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
        confidence: of each single interval, so that all of them hold together with 95 %.
        differences: between the environments, in words. Figures of different environments are hard to compare.
        rows: every row of either benchmark.
        trust: how far the ratios between the two can be trusted, or None in those of earlier versions.
    """

    threshold: Amount
    confidence: Share
    differences: tuple[str, ...]
    rows: tuple[RowComparison, ...]
    trust: Trust | None = None
    schema: str = "torchwise.comparison/1"

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(found)} {change}" for change in Change if (found := self.select_rows(change)))
        return f"<Comparison of two benchmarks, B has regressions: {self.regressed}; {counts or 'no rows'}>"

    def select_rows(self, change: Change) -> tuple[RowComparison, ...]:
        """Return the rows of one kind."""
        return tuple(row for row in self.rows if row.change is change)

    @property
    def regressed(self) -> Answer:
        """Whether any row became slower or wrong, or was lost. Drift of eager is ignored.

        If no row was compared, the answer is inconclusive.
        """
        changes = [row.change for row in self.rows]
        if any(change.is_regression for change in changes):
            return Answer.YES
        others = [row.change for row in self.rows if row.contender != EAGER]
        if Change.INCONCLUSIVE in others or set(changes) <= {Change.NOT_COMPARED, Change.INCONCLUSIVE}:
            return Answer.INCONCLUSIVE
        return Answer.NO

    @property
    def exit_code(self) -> int:
        """0 without a regression, 1 with one, 4 if the measurements cannot tell."""
        return {Answer.NO: 0, Answer.YES: 1, Answer.INCONCLUSIVE: EXIT_INCONCLUSIVE}[self.regressed]


def compare(a: Benchmark, b: Benchmark, threshold: float = THRESHOLD) -> Comparison:
    """Compare two benchmarks row by row, A before and B after.

    Raises:
        InputError: the threshold is not at least 0, or the two share no row.
    """
    Judge(threshold, CONFIDENCE)  # which refuses an invalid threshold
    before, after = ({row.key: row for row in benchmark.rows} for benchmark in (a, b))
    shared = [key for key in before if key in after]
    if not shared:
        raise InputError("the two benchmarks share no row, but must share a target with a contender")
    timed = sum(_is_judged_by_time(before[key], after[key]) for key in shared)
    judge = Judge(threshold, 1 - (1 - CONFIDENCE) / max(timed, 1))
    rows = [_Rows(judge, a, b).compare_rows(before[key], after[key]) for key in shared]
    rows += [_absent(row, b) for key, row in before.items() if key not in after]
    rows += [_make_comparison(row, Change.NOT_COMPARED, "only in B") for key, row in after.items() if key not in before]
    differences = tuple(a.environment.describe_differences(b.environment, "in A", "in B"))
    ratios = [row.time if row.contender == EAGER else row.speedup for row in rows]
    measured = [one for row in (*a.rows, *b.rows) for one in row.measurements]
    causes, observed = [note for one in measured for note in one.notes], [one.speedup for one in measured]
    trust = judge_trust([ratio for ratio in ratios if ratio], causes, observed)
    return Comparison(threshold, judge.confidence, differences, tuple(rows), trust)


@dataclass(frozen=True, slots=True)
class _Rows:
    judge: Judge
    a: Benchmark
    b: Benchmark

    def compare_rows(self, a: Row, b: Row) -> RowComparison:
        if _is_judged_by_time(a, b):
            return self._compare_times(a, b)
        was, now = a.answer_text, b.answer_text
        if a.is_timed and not b.is_timed:
            return _make_comparison(a, Change.LOST, f"{now} in B, {was} in A")
        if b.is_timed and not a.is_timed:
            return _make_comparison(a, Change.GAINED, f"{now} in B, {was} in A")
        if a.is_right and not b.is_right:
            return _make_comparison(a, Change.WRONG, now)
        if b.is_right and not a.is_right:
            return _make_comparison(a, Change.RIGHT, f"{was} in A")
        if a.is_timed and not _are_alike(a, b):
            return _make_comparison(
                a, Change.NOT_COMPARED, f"{a.precision} in A, {b.precision} in B: different precisions are not compared"
            )
        states = f"{was} in both" if was == now else f"{was} in A, {now} in B"
        return _make_comparison(a, Change.NOT_COMPARED, states)

    def _compare_times(self, a: Row, b: Row) -> RowComparison:
        is_eager = a.contender == EAGER
        before, after = _times_of(self.a, a), _times_of(self.b, b)
        found = self.judge.judge(before, after, eager=is_eager)
        # A contender that drifted together with eager needs no row of its own: eager's row shows the drift.
        change = Change.SAME if found.change is Change.DRIFT and not is_eager else found.change
        detail = f"its time per call changed by {show.speedup(found.time)}"
        if not is_eager:
            speeds = f"from {show.speedup(before.speedup)} in A to {show.speedup(after.speedup)} in B"
            detail += f", its speed-up over eager by {show.speedup(found.speedup)}, {speeds}"
        return _make_comparison(a, change, detail, found.time, found.speedup)


def _is_judged_by_time(a: Row, b: Row) -> bool:
    """Whether both are timed at one level, with correct answers. Answers of eager are not judged."""
    if not (a.is_timed and b.is_timed and _are_alike(a, b)):
        return False
    return a.contender == EAGER or (a.is_right and b.is_right)


def _are_alike(a: Row, b: Row) -> bool:
    """Whether both have one precision, or whatever the user's own rule permits in both."""
    return a.precision == b.precision or a.level == b.level


def _absent(row: Row, b: Benchmark) -> RowComparison:
    has_target = any(other.key[:-1] == row.key[:-1] for other in b.rows)
    has_contender = any(other.contender == row.contender for other in b.rows)
    if row.is_timed and has_target and has_contender:
        return _make_comparison(row, Change.LOST, "missing in B, which has its target and its contender")
    return _make_comparison(row, Change.NOT_COMPARED, "only in A")


def _make_comparison(
    row: Row, change: Change, detail: str, time: Interval | None = None, speedup: Interval | None = None
) -> RowComparison:
    return RowComparison(*row.key, change, time, speedup, show.one_line(detail))


def _times_of(benchmark: Benchmark, row: Row) -> Timing:
    """Return the speed-up that the benchmark shows, and the time in the row's own process.

    Eager's time differs from process to process, and would be part of a time on a common scale.
    """
    found = scale_of(benchmark, row.workload).find_scaled(row)
    assert found is not None, "what is judged by time was timed"
    assert row.time is not None, "what is judged by time was timed"
    return Timing(row.time, found.speedup)
