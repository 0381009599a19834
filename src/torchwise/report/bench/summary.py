"""A benchmark in a few figures: how each contender stands over all targets, and where Torchwise is slower."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchwise.records.benchmark import Benchmark, Row
from torchwise.report import format as show
from torchwise.report.bench.table import EAGER, OURS, answers_of, duel_words


@dataclass(frozen=True, slots=True)
class Mean:
    """A geometric mean of ratios over targets (Fleming & Wallace, How not to lie with statistics, CACM 1986).

    Attributes:
        contender: whose.
        precision: class of its numbers.
        ratio: the mean, 1 for equal.
        targets: how many targets are in it: those on which its answers are right.
    """

    contender: str
    precision: str
    ratio: float
    targets: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What a benchmark comes to.

    Attributes:
        targets: how many there are.
        tried: on how many of them each contender was tried so far, in each class.
        speedups: over eager, by contender and precision class, best first; eager against itself is left out.
        duels: Torchwise over the best other, by class.
        faster: duels whose whole interval lies above 1.
        equal: duels whose interval holds 1, and those of eager with itself.
        slower: duels whose whole interval lies below 1, the worst first.
        without: rows of Torchwise with no duel or no right answer.
    """

    targets: int
    tried: dict[tuple[str, str], int]
    speedups: tuple[Mean, ...]
    duels: tuple[Mean, ...]
    faster: tuple[Row, ...]
    equal: tuple[Row, ...]
    slower: tuple[Row, ...]
    without: tuple[Row, ...]


def summarize(benchmark: Benchmark) -> Summary:
    """Sum a benchmark up. Only right answers count: a wrong one has no speed."""
    right = [row for row in benchmark.rows if row.is_right]
    ours = [row for row in benchmark.rows if row.contender == OURS]
    duels = [row for row in ours if row.is_right and row.duel]
    told = [(row, row.duel.speedup) for row in duels if row.duel and not row.is_its_rival]
    faster = tuple(row for row, speedup in told if speedup.low > 1)
    slower = tuple(sorted((row for row, speedup in told if speedup.high < 1), key=_duel))
    speeds = [(row, row.speedup.mid) for row in right if row.speedup and row.contender != EAGER]
    return Summary(
        targets=len(benchmark.workloads),
        tried=Counter((row.contender, row.precision) for row in benchmark.rows if not row.refused),
        speedups=_means(speeds),
        duels=_means([(row, row.duel.speedup.mid) for row in duels if row.duel]),
        faster=faster,
        equal=tuple(row for row in duels if row not in faster and row not in slower),
        slower=slower,
        without=tuple(row for row in ours if row not in duels),
    )


def sentences(summary: Summary) -> list[str]:
    """Return a summary in words, a line each; none where nothing was timed."""
    found = [_over_eager(mean, summary.tried[mean.contender, mean.precision]) for mean in summary.speedups]
    found += [
        f"torchwise over the best other{_in_class(mean)}: {show.ratio(mean.ratio)}, geometric mean of "
        f"{show.counted(mean.targets, 'target')}"
        for mean in summary.duels
    ]
    if summary.duels:
        counts = f"{len(summary.faster)} faster, {len(summary.equal)} equal within the interval"
        found.append(f"torchwise against the best other: {counts}, {len(summary.slower)} slower")
    found += [f"slower on {_target(row)}: {_figures(row)}" for row in summary.slower]
    found += [f"not held against another on {_target(row)}: {_why(row)}" for row in summary.without]
    return [show.one_line(text) for text in found]


def _means(pairs: Sequence[tuple[Row, float]]) -> tuple[Mean, ...]:
    groups: dict[tuple[str, str], list[float]] = {}
    for row, ratio in pairs:
        groups.setdefault((row.contender, row.precision), []).append(math.log(ratio))
    found = [Mean(*key, math.exp(sum(logs) / len(logs)), len(logs)) for key, logs in groups.items()]
    return tuple(sorted(found, key=lambda mean: -mean.ratio))


def _over_eager(mean: Mean, tried: int) -> str:
    over = "" if mean.targets == tried else f", right on {mean.targets} of {tried}"
    among = f"geometric mean of {show.counted(mean.targets, 'target')}{over}"
    return f"{mean.contender}{_in_class(mean)} over eager: {show.ratio(mean.ratio)}, {among}"


def _in_class(mean: Mean) -> str:
    """Name a class other than the model's own; eager itself stays in the model's own."""
    return "" if mean.precision == "native" else f" in {mean.precision}"


def _duel(row: Row) -> float:
    return row.duel.speedup.mid if row.duel else math.inf


def _target(row: Row) -> str:
    work = row.workload
    return f"{work.target} ({work.mode} on {work.device})"


def _figures(row: Row) -> str:
    if row.duel is None:
        return ""
    times = f"{show.seconds(row.duel.candidate_time.mid)} for its {show.seconds(row.duel.baseline_time.mid)} per call"
    return f"{show.speedup(row.duel.speedup)} of {row.rival}'s speed, {times}"


def _why(row: Row) -> str:
    return duel_words(row) if row.is_right else ": ".join(filter(None, answers_of(row)))
