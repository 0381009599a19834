"""A benchmark as lines for people: target by target, one line for each contender. Every view shows these."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.records import Outcome
from torchwise.records.benchmark import Benchmark, Performance, Row
from torchwise.report import format as show
from torchwise.workload import WorkloadSpec

OURS = "torchwise"
EAGER = "eager"
BEST = "★"
LEGEND = (
    f"{BEST} the fastest right answer of its precision class. Speed-up over eager with its 95 % interval, both in one "
    "process. Cold and warm: what the first call takes beyond a steady one, with empty and with full caches. Roofline: "
    "the least time that the work can take here over the time it took."
)


@dataclass(frozen=True, slots=True)
class Line:
    """One contender on one target, as text.

    Attributes:
        row: what it was made from.
        is_best: whether it is the fastest of its precision class whose answers are right.
        contender: its name.
        precision: class of its numbers.
        time: per call.
        speedup: over eager, with its interval.
        cold: first call with empty caches.
        warm: first call with full caches.
        memory: at the peak, and how that compares with eager's.
        roofline: share of the roofline.
        answers: "passed", "passed, overwritten", "not right", "not comparable", "failed" or "missing".
        why: what is behind the answers, where they are not simply right.
        choice: for Torchwise its plan, the seconds of search, and how it stands against the best other.
        search: for Torchwise where another is faster, what became of every plan that it could have decided for.
        doubts: what the measurements say against themselves: noise, drift, foreign load.
    """

    row: Row
    is_best: bool
    contender: str
    precision: str
    time: str
    speedup: str
    cold: str
    warm: str
    memory: str
    roofline: str
    answers: str
    why: str = ""
    choice: str = ""
    search: str = ""
    doubts: str = ""

    @property
    def remarks(self) -> list[str]:
        """What is to be said below the table, a line each."""
        return [text for text in (self.why, self.choice, self.search, self.doubts) if text]

    @property
    def name(self) -> str:
        """The contender, marked where it is the best."""
        return f"{self.contender} {BEST}" if self.is_best else self.contender


@dataclass(frozen=True, slots=True)
class Block:
    """One target with its lines, in the order in which they ran."""

    workload: WorkloadSpec
    lines: tuple[Line, ...]

    @property
    def title(self) -> str:
        """The target, and what it was run for."""
        work = self.workload
        return f"{show.one_line(work.target)}, {work.mode} on {work.device}, for {work.objective}"


def blocks(benchmark: Benchmark) -> list[Block]:
    """Return the targets of a benchmark, in order."""
    return [_block(benchmark, workload) for workload in benchmark.workloads]


def best_of(rows: tuple[Row, ...]) -> dict[str, Row]:
    """Return the fastest right row of each precision class: ratios never mix classes.

    What was timed in one process goes before what was not: where Torchwise was held against what may be the fastest of
    the others, that says which of the two it is. Else it is the one of the highest speed-up over eager, if it is
    surely above 1: a guess where eager takes 19 ms in one process and 28 in another (a training step on an H200).
    """
    found: dict[str, Row] = {}
    for row in rows:
        if row.is_right and (row.precision not in found or _rank(row) > _rank(found[row.precision])):
            found[row.precision] = row
    for ours in rows:
        if ours.is_right and ours.duel:
            rival = next((row for row in rows if row.contender == ours.rival and row.is_right), ours)
            found[ours.precision] = ours if ours.duel.speedup.mid >= 1 else rival
    return found


def line_of(row: Row, benchmark: Benchmark, *, is_best: bool = False) -> Line:
    """Return a row as text."""
    costs = row.performance.costs if row.performance else None
    answers, why = answers_of(row)
    return Line(
        row,
        is_best,
        contender=show.one_line(row.contender),
        precision=show.one_line(row.precision),
        time=show.seconds(row.time.mid if row.time else None),
        speedup=show.speedup(row.speedup),
        cold=show.seconds(costs.cold_s if costs else None),
        warm=show.seconds(costs.warm_s if costs else None),
        memory=_memory(row.performance),
        roofline=show.percent(row.share_of(benchmark.peaks)),
        answers=answers,
        why=show.one_line(why),
        choice=show.one_line(_choice(row)) if row.contender == OURS else "",
        search=show.one_line(_search(row)),
        doubts=show.one_line("; ".join(_doubts(row))),
    )


def answers_of(row: Row) -> tuple[str, str]:
    """Return what is to be said of a row's answers in a word or two, and what is behind it."""
    if not row.is_timed or row.performance is None:
        return row.state.value, row.reason
    verdict = row.performance.verdict
    if verdict.outcome is Outcome.PASS:
        return (
            ("passed, overwritten", "an answer is overwritten by the next call")
            if row.performance.overwrites
            else ("passed", "")
        )
    return ("not right" if verdict.outcome is Outcome.FAIL else "not comparable"), verdict.reason


def duel_words(row: Row) -> str:
    """Return how Torchwise stands against the fastest other of its class, or why it was not held against one."""
    if row.duel is not None and row.is_right:
        same = ", the very same" if row.is_its_rival else ""
        return f"{show.speedup(row.duel.speedup)} the best other ({row.rival}{same})"
    if not row.is_right:
        return ""
    return row.reason or f"no other right answer in class {row.precision} to be held against"


def _block(benchmark: Benchmark, workload: WorkloadSpec) -> Block:
    rows = benchmark.of(workload)
    best = best_of(rows).values()
    lines = (line_of(row, benchmark, is_best=any(row is found for found in best)) for row in rows)
    return Block(workload, tuple(lines))


def _rank(row: Row) -> tuple[bool, bool, float]:
    """Return what orders rows by speed: those surely faster than eager, eager, and all others."""
    if row.speedup is None:
        return False, False, 0.0
    return row.speedup.low > 1 and row.contender != EAGER, row.contender == EAGER, row.speedup.mid


def _memory(performance: Performance | None) -> str:
    if performance is None or performance.costs.peak_memory is None:
        return show.NONE
    peak, eager = performance.costs.peak_memory, performance.costs.baseline_peak_memory
    return show.size(peak) + (f" ({show.ratio(peak / eager)})" if eager else "")


def _doubts(row: Row) -> list[str]:
    alone = row.performance.measurement.notes if row.performance else ()
    beside = row.duel.notes if row.duel else ()
    failed = [row.reason] if row.duel and row.is_timed and row.reason else []  # another duel than the one that is shown
    return [*alone, *(f"beside {row.rival}: {note}" for note in beside), *failed]


def _search(row: Row) -> str:
    """Say what was tried and left out, where the fastest other is surely faster: the reason is among it."""
    if row.duel is None or row.duel.speedup.high >= 1 or row.is_its_rival or not row.searched:
        return ""
    return f"what was tried, and what was not: {'; '.join(row.searched)}"


def _choice(row: Row) -> str:
    words = [f"plan {row.plan}"] if row.plan else []
    if row.plan:
        words += ["given" if row.search_s is None else f"searched {show.seconds(row.search_s)}"]
    return ", ".join([*words, *filter(None, [duel_words(row)])])
