"""Speed-up over eager with its interval, plan by plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise.records import Interval, Study
from torchwise.report import format as show
from torchwise.report.plots.plot import Plot, Series, series_of
from torchwise.report.plots.strips import height, name_strips
from torchwise.report.plots.svg import INK, MUTED, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def speedup_plot(study: Study) -> Plot | None:
    """Return the plot, or None if no candidate was timed."""
    found = [(s, s.row.speedup) for s in series_of(study) if s.row.speedup]
    if not found:
        return None
    ranked = [pair for pair in found if pair[0].is_ranked]
    summary = "No plan was verified and timed precisely enough to be ranked."
    if ranked:
        best, speedup = max(ranked, key=lambda pair: pair[1].mid)
        plans = show.pluralize(len(ranked), "verified plan")
        summary = f"{best.row.name} is the fastest of {plans}, at {show.speedup(speedup)}."
    return Plot(
        key="speedup",
        title="Speed-up over eager",
        summary=summary,
        caption="The dot is the median of the paired ratios, the bar its 95 % interval. Right of 1 is faster than "
        "eager. A hollow dot was not verified. A bar without a dot is too uncertain for a figure.",
        svg=draw("speedup", summary, height(len(found)), lambda axes: _paint(axes, found)),
        header=("plan", "speed-up", "low", "high", "rounds"),
        table=tuple(_line(series, interval) for series, interval in found),
    )


def _paint(axes: Axes, found: list[tuple[Series, Interval]]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    for position, (series, interval) in enumerate(found):
        axes.hlines(position + 0.02, interval.low, interval.high, color=series.color, linewidth=3.5, alpha=0.55)
        if not interval.is_usable:
            continue
        face = series.color if series.is_right else "none"
        axes.plot(interval.mid, position + 0.02, "o", color=series.color, markerfacecolor=face, markersize=7)
    ends = [1.0, *(end for _, interval in found for end in (interval.low, interval.high))]
    margin = max((max(ends) - min(ends)) * 0.08, 0.02)
    axes.set_xlim(max(min(ends) - margin, 0), max(ends) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlabel("eager's time over the plan's", color=MUTED)
    name_strips(axes, [series.row.name for series, _ in found])


def _line(series: Series, interval: Interval) -> tuple[str, ...]:
    mid = interval.mid if interval.is_usable else None  # as in the plot, which has no dot for it either
    figures = (show.ratio(mid), show.ratio(interval.low), show.ratio(interval.high))
    return (series.row.name, *figures, show.count(len(series.measurement.candidate_s)))
