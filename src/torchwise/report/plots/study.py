"""Plots of studies: speed-ups, every timed round, total time over the number of calls, and the history of a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchwise.records import Interval, Measurement, Outcome, Study
from torchwise.records import format as show
from torchwise.records.answer import Change
from torchwise.records.candidates import Row, rows
from torchwise.records.reasons import Cost, baseline_cost, cost_of, workload_of
from torchwise.records.study_diff import Line, Point
from torchwise.report.document import Plot
from torchwise.report.facts import break_even, when
from torchwise.report.plots.drawing import (
    COLORS,
    DASHES,
    INK,
    MAX_COUNT,
    MAX_NAME,
    MUTED,
    NEUTRAL,
    Strip,
    add_legend,
    draw,
    height,
    name_strips,
    paint_intervals,
    scale_time,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_DOTS = 120
"""Maximum number of dots per plan. More would only make the page larger."""
TAIL = 1.25
"""Ratio of the axis end to the 95th percentile. A single outlier must not compress the rest."""


@dataclass(frozen=True, slots=True)
class Series:
    """One candidate with samples, and its colour in every plot: decided accent, eager neutral."""

    row: Row
    measurement: Measurement
    color: str

    @property
    def is_verified(self) -> bool:
        """Whether it may be compared: eager, or a plan that was verified and timed to the end."""
        return self.row.standing != "ineligible"

    @property
    def is_right(self) -> bool:
        """Whether its answers passed verification. A plan that was stopped early may have passed."""
        return self.row.trial is None or self.row.outcome is Outcome.PASS

    @property
    def is_ranked(self) -> bool:
        """Whether it may be called the fastest: verified, with a speed-up that is not too uncertain."""
        return self.is_verified and not self.is_unclear

    @property
    def is_unclear(self) -> bool:
        """Whether it is a verified plan whose speed-up is too uncertain for a figure."""
        return self.is_verified and self.row.speedup is not None and not self.row.speedup.is_usable


def series_of(study: Study) -> list[Series]:
    """Return eager and the timed candidates, best first, up to a plot's limit, or none if nothing was timed."""
    own = study.eager
    timed = [(row, row.trial.measurement) for row in rows(study) if row.time and row.trial and row.trial.measurement]
    timed.sort(key=lambda pair: -(pair[0].speedup.mid if pair[0].speedup else 0.0))
    timed.sort(key=lambda pair: (not pair[0].is_decided, pair[0].standing == "ineligible"))
    eager = [Series(row, own, NEUTRAL) for row in rows(study) if row.trial is None and own.baseline_s]
    return eager + [Series(row, found, COLORS[i % len(COLORS)]) for i, (row, found) in enumerate(timed[:MAX_COUNT])]


def speedup_plot(study: Study) -> Plot | None:
    """Return the speed-up over eager plan by plan, or None if no candidate was timed."""
    found = [(s, s.row.speedup) for s in series_of(study) if s.row.speedup]
    if not found:
        return None
    summary = _name_fastest(found)
    return Plot(
        key="speedup",
        title="Speed-up over eager",
        summary=summary,
        caption="The dot is the median of the paired ratios, the bar its 95 % interval. Right of 1 is faster than "
        "eager. A hollow dot was not verified. A bar without a dot is too uncertain for a figure.",
        svg=draw("speedup", summary, height(len(found)), lambda axes: _paint_speedups(axes, found)),
        header=("plan", "speed-up", "low", "high", "rounds"),
        table=tuple(_speedup_cells(series, interval) for series, interval in found),
    )


def _name_fastest(found: Sequence[tuple[Series, Interval]]) -> str:
    ranked = [pair for pair in found if pair[0].is_ranked]
    if not ranked:
        return "No plan was verified and timed precisely enough to be ranked."
    best, speedup = max(ranked, key=lambda pair: pair[1].mid)
    unclear = [series.row for series, interval in found if series.is_unclear and interval.high > speedup.mid]
    if unclear:
        return f"{unclear[0].name} may be the fastest, at {show.speedup(unclear[0].speedup)}."
    plans = show.pluralize(len(ranked), "verified plan")
    return f"{best.row.name} is the fastest of {plans}, at {show.speedup(speedup)}."


def _paint_speedups(axes: Axes, found: Sequence[tuple[Series, Interval]]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    paint_intervals(axes, [Strip(one.row.name, speed, one.color, not one.is_right) for one, speed in found])
    ends = [1.0, *(end for _, interval in found for end in (interval.low, interval.high))]
    margin = max((max(ends) - min(ends)) * 0.08, 0.02)
    axes.set_xlim(max(min(ends) - margin, 0), max(ends) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlabel("eager's time over the plan's", color=MUTED)


def _speedup_cells(series: Series, interval: Interval) -> tuple[str, ...]:
    mid = interval.mid if interval.is_usable else None  # as in the plot, which has no dot for it either
    figures = (show.ratio(mid), show.ratio(interval.low), show.ratio(interval.high))
    return (series.row.name, *figures, show.count(len(series.measurement.candidate_s)))


def latency_plot(study: Study) -> Plot | None:
    """Return every round of a plan and the rounds of eager that alternated with them, or None if nothing was timed."""
    found = series_of(study)
    if not found:
        return None
    summary = _name_shortest(found)
    return Plot(
        key="latency",
        title="Time per call",
        summary=summary,
        caption="Each dot is one round of a plan. The grey dots below are eager's rounds, which alternated with them "
        "in the same process. Each process is scaled so that its medians agree with the table. The thin bar spans the "
        "middle 90 %, the thick bar the middle 50 %, and the stroke is the median. At most "
        f"{MAX_DOTS} evenly chosen rounds are drawn. Rare outliers may lie beyond the axis, but are in the table.",
        svg=draw("latency", summary, height(len(found)), lambda axes: _paint_rounds(axes, found)),
        header=("plan", "rounds", "minimum", "5 %", "median", "95 %", "maximum"),
        table=tuple(line for series in found for line in _latency_lines(series)),
    )


def _name_shortest(found: Sequence[Series]) -> str:
    timed = [(series, series.row.time) for series in found if series.is_verified and series.row.time]
    ranked = [(time.mid, series.row.name) for series, time in timed if series.is_ranked]
    if not ranked:
        return "No timed plan was verified."
    median, name = min(ranked)
    unclear = [(series.row.name, time) for series, time in timed if series.is_unclear and time.low < median]
    if unclear:
        return f"{unclear[0][0]} may have the shortest time per call, {show.time(unclear[0][1])}."
    return f"{name} has the shortest median time per call, {show.seconds(median)}."


def _samples(series: Series) -> Sequence[float]:
    if not series.row.trial:
        return series.measurement.baseline_s
    return scale_samples(series.measurement.candidate_s, series.row.time.mid if series.row.time else None)


def _eager(series: Series) -> Sequence[float]:
    """Return eager's rounds that alternated with a plan, on the scale of eager's time in this study."""
    row = series.row
    eager_s = row.time.mid * row.speedup.mid if row.time and row.speedup else None
    return scale_samples(series.measurement.baseline_s, eager_s)


def scale_samples(samples: Sequence[float], median: float | None) -> Sequence[float]:
    """Return samples scaled to this median."""
    factor = 1.0 if median is None else median / float(np.median(samples))
    return [sample * factor for sample in samples]


def _paint_rounds(axes: Axes, found: Sequence[Series]) -> None:
    low, high = np.inf, 0.0
    for position, series in enumerate(found):
        own = values = np.asarray(_samples(series))
        _paint_dots(axes, own, position + 0.02, series.color)
        if series.row.trial and series.measurement.baseline_s:
            eager = np.asarray(_eager(series))
            _paint_dots(axes, eager, position + 0.26, NEUTRAL)
            values = np.concatenate([own, eager])
        _paint_spread(axes, own, position + 0.02, series.color)
        low, high = min(low, float(values.min())), max(high, float(np.quantile(values, 0.95)))
    scale_time(axes, "x", low, high)
    axes.set_xlim(low * 0.97, min(high * TAIL, high + (high - low) * 0.5) * 1.02)
    axes.set_xlabel("time per call", color=MUTED)
    name_strips(axes, [series.row.name for series in found])


def _paint_dots(axes: Axes, values: np.ndarray, position: float, color: str) -> None:
    chosen = values[np.unique(np.linspace(0, len(values) - 1, min(len(values), MAX_DOTS)).round().astype(int))]
    jitter = np.random.default_rng(0).uniform(-0.09, 0.09, len(chosen))
    axes.plot(chosen, position + jitter, "o", color=color, markersize=2.6, alpha=0.45, markeredgewidth=0)


def _paint_spread(axes: Axes, values: np.ndarray, position: float, color: str) -> None:
    if len(values) < 3:  # one or two rounds have no meaningful spread
        return
    low, first, middle, third, high = np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95))
    axes.hlines(position, low, high, color=color, linewidth=1.4)
    axes.hlines(position, first, third, color=color, linewidth=5, alpha=0.6)
    axes.vlines(middle, position - 0.13, position + 0.13, color=INK, linewidth=1.6)


def _latency_lines(series: Series) -> list[tuple[str, ...]]:
    lines = [_latency_cells(series.row.name, _samples(series))]
    if series.row.trial and series.measurement.baseline_s:
        lines.append(_latency_cells(f"eager, alternating with {series.row.name}", _eager(series)))
    return lines


def _latency_cells(name: str, values: Sequence[float]) -> tuple[str, ...]:
    quantiles = np.quantile(np.asarray(values), (0.0, 0.05, 0.5, 0.95, 1.0))
    return (name, show.count(len(values)), *(show.seconds(float(value)) for value in quantiles))


def history_plot(line: Line, number: int) -> Plot:
    """Return the time per call of the decided plans of a line. `number` makes its key unique on the page."""
    timed = [(point, point.row.time) for point in line.points if point.row.time]
    worse = [point.study.environment.torch for point, _ in timed if point.change.is_regression]
    summary = "No study is worse than the one before."
    if worse:
        summary = f"Worse than the study before with torch {', '.join(worse)}."
    elif any(point.change is Change.INCONCLUSIVE for point, _ in timed):
        summary = "No study is clearly worse than the one before, but some are inconclusive."
    key = f"history-{number}"
    return Plot(
        key=key,
        title=f"{line.name}, on {line.hardware}",
        summary=summary,
        caption="The oldest study is on top. The dot is the time per call of the decided plan, the bar its 95 % "
        "interval. A hollow dot is worse than the study above it. A bar without a dot is too uncertain for a figure.",
        svg=draw(key, summary, height(len(timed)), lambda axes: _paint_history(axes, timed)),
        header=("study", "time", "torch", "plan", "per call", "change"),
        table=tuple(_history_cells(point) for point, _ in timed),
    )


def _paint_history(axes: Axes, timed: Sequence[tuple[Point, Interval]]) -> None:
    paint_intervals(
        axes,
        [
            Strip(_name_point(point), time, COLORS[1 if point.change.is_regression else 0], point.change.is_regression)
            for point, time in timed
        ],
    )
    low, high = min(time.low for _, time in timed), max(time.high for _, time in timed)
    margin = max((high - low) * 0.08, high * 0.02)
    axes.set_xlim(max(low - margin, low / 2), high + margin)
    scale_time(axes, "x", low, high)
    axes.set_xlabel("time per call", color=MUTED)


def _name_point(point: Point) -> str:
    change = "" if point.change in (Change.SAME, Change.NOT_COMPARED) else f": {point.change}"
    return f"torch {point.study.environment.torch}, {point.row.name}{change}"


def _history_cells(point: Point) -> tuple[str, ...]:
    study, time = point.study, show.time(point.row.time)
    return (str(study.id), when(study.created_at), study.environment.torch, point.row.name, time, point.change.value)


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    cost: Cost
    color: str
    break_even: float


def cost_plot(study: Study) -> Plot | None:
    """Return the plot, or None if no candidate has both a time and a compile cost."""
    baseline = baseline_cost(study)
    lines = _candidates(study, baseline) if baseline else []
    if baseline is None or not lines:
        return None
    calls, paying = workload_of(study).calls, [line for line in lines if math.isfinite(line.break_even)]
    first = min(paying, key=lambda line: line.break_even, default=None)
    summary = "No plan pays back."
    if first:
        summary = f"{first.name} is the first to pay back, after {break_even(first.break_even)}."
    starts = workload_of(study).restarts
    warm = "" if starts == 1 else f", {starts - 1:,} times the warm compile"
    summary = f"{summary} {show.pluralize(calls, 'call')} are expected."
    return Plot(
        key="cost",
        title="Total time over the number of calls",
        summary=summary,
        caption=f"Total time: the cold compile{warm}, and the calls. Both axes are logarithmic. A dot is the "
        "break-even point of a plan. The dashed vertical line is the expected number of calls.",
        svg=draw("cost", summary, 3.6 + 0.22 * len(lines), lambda axes: _paint(axes, baseline, lines, calls)),
        header=("plan", "compiling", "per call", "pays back after", f"after {show.pluralize(calls, 'call')}"),
        table=(_row("eager", baseline, None, calls), *(_row(x.name, x.cost, x.break_even, calls) for x in lines)),
    )


def _candidates(study: Study, baseline: Cost) -> list[_Line]:
    """Return the lines of verified plans, at most one per colour, and only the faster plans if there are any."""
    lines, faster = [], []
    for series in series_of(study):
        row = series.row
        cost = cost_of(row.trial, study) if row.trial and series.is_ranked else None
        if cost:
            lines.append(_Line(row.name, cost, series.color, cost.break_even(baseline)))
            faster += lines[-1:] if row.speedup and row.speedup.low > 1 else []
    return (faster or lines)[: len(COLORS)]


def _paint(axes: Axes, baseline: Cost, lines: list[_Line], calls: int) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    last = max([calls * 10.0, 1000.0, *(x.break_even * 3 for x in lines if x.break_even < calls * 1e3)])
    x = np.geomspace(1, last, 200)
    axes.plot(x, baseline.seconds_after(1) * x, color=INK, linewidth=1.8, label="eager")
    for line, dash in zip(lines, DASHES, strict=False):
        label = show.truncate(line.name, MAX_NAME)
        axes.plot(
            x,
            line.cost.fixed_s + line.cost.per_call_s * x,
            color=line.color,
            linewidth=1.8,
            linestyle=dash,
            label=label,
        )
        if 1 <= line.break_even <= last:
            axes.plot(line.break_even, baseline.seconds_after(line.break_even), "o", color=line.color, markersize=7)
    axes.axvline(calls, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xscale("log")
    axes.set_xlim(1, last)
    scale_time(axes, "y", baseline.per_call_s, baseline.seconds_after(last))
    axes.xaxis.set_major_locator(LogLocator(numticks=9))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_xlabel("calls", color=MUTED)
    add_legend(axes, handlelength=3)


def _row(name: str, cost: Cost, paid_after: float | None, calls: int) -> tuple[str, ...]:
    each, total = show.seconds(cost.per_call_s), show.seconds(cost.seconds_after(calls))
    return (name, show.seconds(cost.fixed_s), each, break_even(paid_after), total)


def _short(value: float) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g}"
