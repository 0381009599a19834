"""Summary of a benchmark: each contender's result over all targets, and where Torchwise is slower."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchwise.records import format as show
from torchwise.records.answer import Answer
from torchwise.records.benchmark import EAGER, PERMITTED, TORCHWISE, Benchmark, Row
from torchwise.records.scale import scale_of, surely_faster
from torchwise.records.statistics import Interval


@dataclass(frozen=True, slots=True)
class Mean:
    """A geometric mean of ratios over targets (Fleming & Wallace, How not to lie with statistics, CACM 1986).

    Attributes:
        level: the numerics within which it is compared.
        ratio: the mean, 1 for equal.
        targets: number of targets in it: those with correct answers and a reliable ratio.
        uncertain: number of targets with correct answers and a ratio that is too uncertain.
    """

    contender: str
    level: str
    ratio: float
    targets: int
    uncertain: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a benchmark.

    Attributes:
        tried: number of targets on which each contender ran so far, at each level.
        speedups: over eager, by contender and level, best first, without eager against itself.
        duels: Torchwise over the best alternative, by level.
        faster: duels whose whole interval lies above 1.
        equal: duels whose interval holds 1 and is narrow, and those of eager with itself.
        slower: duels whose whole interval lies below 1, the worst first.
        inconclusive: duels whose interval holds 1 and is wide.
        without: rows of Torchwise with no duel or no correct answer.
        ratios: Torchwise over its rival, for each row with a duel.
    """

    targets: int
    tried: dict[tuple[str, str], int]
    speedups: tuple[Mean, ...]
    duels: tuple[Mean, ...]
    faster: tuple[Row, ...]
    equal: tuple[Row, ...]
    slower: tuple[Row, ...]
    inconclusive: tuple[Row, ...]
    without: tuple[Row, ...]
    ratios: tuple[tuple[Row, Interval], ...] = ()


def summarize(benchmark: Benchmark) -> Summary:
    """Summarise a benchmark. Only correct answers count."""
    own = [row for row in benchmark.rows if row.contender == TORCHWISE]
    duels = [row for row in own if row.is_right and row.duel]
    scales = {workload: scale_of(benchmark, workload) for workload in benchmark.workloads}
    found = ((row, scales[row.workload].duel_ratio(row)) for row in duels)
    ratios = tuple((row, ratio) for row, ratio in found if ratio)
    answers = [(row, scales[row.workload].duel_answer(row)) for row in duels]
    faster = tuple(row for row, answer in answers if answer is Answer.YES)
    slower_pairs = [pair for pair in ratios if pair[1].high < 1 and not pair[0].is_its_rival]
    slower = tuple(row for row, _ in sorted(slower_pairs, key=lambda pair: pair[1].mid))
    uncertain = tuple(row for row, answer in answers if answer is Answer.INCONCLUSIVE)
    scaled = [one for scale in scales.values() for one in scale.rows]
    speeds = [(one.row, one.speedup) for one in scaled if one.row.is_right and one.row.contender != EAGER]
    return Summary(
        targets=len(benchmark.workloads),
        tried=Counter((row.contender, row.level) for row in benchmark.rows if not row.refused),
        speedups=_means(speeds),
        duels=_means(ratios),
        faster=faster,
        equal=tuple(row for row in duels if row not in (*faster, *slower, *uncertain)),
        slower=slower,
        inconclusive=uncertain,
        without=tuple(row for row in own if row not in duels),
        ratios=ratios,
    )


def why_no_duel(row: Row) -> str:
    """Explain why a correct answer of Torchwise was not compared with another contender."""
    if not row.is_right:
        return ""
    if row.reason:
        return row.reason
    if row.level == PERMITTED:
        return "no other contender with correct answers was timed beside it"
    return f"no other contender has correct answers in precision {row.precision}"


def _means(pairs: Sequence[tuple[Row, Interval]]) -> tuple[Mean, ...]:
    """Return the means of the reliable ratios.

    A ratio that may be above or below 1 is part of a mean of several ratios. Without those, the mean would lack the
    ratios close to 1. A single such ratio gives no mean.
    """
    groups: dict[tuple[str, str], list[Interval]] = {}
    for row, ratio in pairs:
        groups.setdefault((row.contender, row.level), []).append(ratio)
    found = []
    for key, ratios in groups.items():
        figures = [ratio for ratio in ratios if ratio.is_usable]
        if len(figures) > 1 or any(surely_faster(ratio) is not Answer.INCONCLUSIVE for ratio in figures):
            mean = math.exp(sum(math.log(ratio.mid) for ratio in figures) / len(figures))
            found.append(Mean(*key, mean, len(figures), len(ratios) - len(figures)))
    return tuple(sorted(found, key=lambda mean: -mean.ratio))


def describe_summary(summary: Summary) -> list[str]:
    """Return the lines of a summary, or none if nothing was timed."""
    lines = [_describe_speedup(mean, summary.tried[mean.contender, mean.level]) for mean in summary.speedups]
    lines += [
        f"torchwise over the best alternative{_level_suffix(mean)}: {show.ratio(mean.ratio)}, {_describe_targets(mean)}"
        for mean in summary.duels
    ]
    if compared := summary.faster + summary.equal + summary.slower + summary.inconclusive:
        counts = f"{len(summary.faster)} faster, {len(summary.equal)} equal within the interval"
        counts += f", {len(summary.slower)} slower"
        counts += f", {len(summary.inconclusive)} inconclusive" if summary.inconclusive else ""
        lines.append(f"torchwise against the best alternative on {show.pluralize(len(compared), 'target')}: {counts}")
    lines += [f"slower on {_name_target(row)}: {_compare_rival(row, summary)}" for row in summary.slower]
    lines += [f"inconclusive on {_name_target(row)}: {_compare_rival(row, summary)}" for row in summary.inconclusive]
    lines += [f"not compared on {_name_target(row)}: {why_no_duel(row) or row.answer_text}" for row in summary.without]
    return [show.one_line(text) for text in lines]


def _describe_speedup(mean: Mean, tried: int) -> str:
    right = mean.targets + mean.uncertain
    over = "" if right == tried else f", correct on {right} of {tried}"
    name = f"{mean.contender}{_level_suffix(mean)}"
    return f"{name} over eager: {show.ratio(mean.ratio)}, {_describe_targets(mean)}{over}"


def _describe_targets(mean: Mean) -> str:
    """Return the number of targets behind a ratio, and of those that are left out."""
    many = f"geometric mean of {show.pluralize(mean.targets, 'target')}" if mean.targets > 1 else "on one target"
    return f"{many}, too uncertain on {mean.uncertain} more" if mean.uncertain else many


def _level_suffix(mean: Mean) -> str:
    """Return a suffix for a precision other than the model's own."""
    return "" if mean.level in ("native", PERMITTED) else f" in {mean.level}"


def _name_target(row: Row) -> str:
    work = row.workload
    return f"{work.target} ({work.mode} on {work.device})"


def _compare_rival(row: Row, summary: Summary) -> str:
    ratio = next((ratio for one, ratio in summary.ratios if one is row), None)
    return f"{show.speedup(ratio)} {row.rival}'s speed"
