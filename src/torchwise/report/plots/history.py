"""Time per call of the decided plan, study by study."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise.report import format as show
from torchwise.report.plots.plot import Plot
from torchwise.report.plots.strips import height, name_strips, scale_time
from torchwise.report.plots.svg import COLORS, MUTED, draw
from torchwise.report.regression import Change
from torchwise.report.summary import when

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torchwise.report.history import Line, Point


def history_plot(line: Line, number: int) -> Plot:
    """Return the plot of a line. `number` makes its key unique on the page."""
    timed = [point for point in line.points if point.row.time]
    worse = [point.study.environment.torch for point in timed if point.change.is_regression]
    summary = f"Worse than the study before with torch {', '.join(worse)}." if worse else _not_worse(timed)
    key = f"history-{number}"
    return Plot(
        key=key,
        title=f"{line.name}, on {line.hardware}",
        summary=summary,
        caption="The oldest study is on top. The dot is the time per call of the decided plan, the bar its 95 % "
        "interval. A hollow dot is worse than the study above it. A bar without a dot is too uncertain for a figure.",
        svg=draw(key, summary, height(len(timed)), lambda axes: _paint(axes, timed)),
        header=("study", "time", "torch", "plan", "per call", "change"),
        table=tuple(_cells(point) for point in timed),
    )


def _not_worse(points: list[Point]) -> str:
    if any(point.change is Change.INCONCLUSIVE for point in points):
        return "No study is clearly worse than the one before, but some are inconclusive."
    return "No study is worse than the one before."


def _paint(axes: Axes, points: list[Point]) -> None:
    times = [point.row.time for point in points if point.row.time]
    for position, (point, time) in enumerate(zip(points, times, strict=True)):
        color = COLORS[1] if point.change.is_regression else COLORS[0]
        axes.hlines(position + 0.02, time.low, time.high, color=color, linewidth=3.5, alpha=0.55)
        if not time.is_usable:
            continue
        face = "none" if point.change.is_regression else color
        axes.plot(time.mid, position + 0.02, "o", color=color, markerfacecolor=face, markersize=7)
    low, high = min(time.low for time in times), max(time.high for time in times)
    margin = max((high - low) * 0.08, high * 0.02)
    axes.set_xlim(max(low - margin, low / 2), high + margin)
    scale_time(axes, "x", low, high)
    axes.set_xlabel("time per call", color=MUTED)
    name_strips(axes, [_name(point) for point in points])


def _name(point: Point) -> str:
    change = "" if point.change in (Change.SAME, Change.NOT_COMPARED) else f": {point.change}"
    return f"torch {point.study.environment.torch}, {point.row.name}{change}"


def _cells(point: Point) -> tuple[str, ...]:
    study, time = point.study, show.time(point.row.time)
    return (str(study.id), when(study.created_at), study.environment.torch, point.row.name, time, point.change.value)
