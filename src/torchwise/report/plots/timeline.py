"""The stages of a compilation on one time axis, each starting where the one before it ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from torchwise.records.explanation import Stage
from torchwise.report import format as show
from torchwise.report.plots.plot import Plot
from torchwise.report.plots.strips import height, name_strips
from torchwise.report.plots.svg import COLORS, MUTED, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def timeline_plot(stages: Sequence[Stage]) -> Plot | None:
    """Return the plot, or None if no stage took any time."""
    total = sum(stage.seconds for stage in stages)
    if not total:
        return None
    longest = max(stages, key=lambda stage: stage.seconds)
    summary = (
        f"The longest stage, {longest.name}, takes {show.seconds(longest.seconds)} of {show.seconds(total)}: "
        f"{show.percent(longest.seconds / total)}."
    )
    return Plot(
        key="stages",
        title="Stages of compiling",
        summary=summary,
        caption="Each stage begins at the end of the one before it. If several graphs are compiled, each bar is the "
        "sum of a stage's time over all graphs.",
        svg=draw("stages", summary, height(len(stages)), lambda axes: _paint(axes, stages, total)),
        header=("stage", "time", "share"),
        table=tuple((s.name, show.seconds(s.seconds), show.percent(s.seconds / total)) for s in stages),
    )


def _paint(axes: Axes, stages: Sequence[Stage], total: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    begins = accumulate((stage.seconds for stage in stages[:-1]), initial=0.0)
    for position, (stage, begin) in enumerate(zip(stages, begins, strict=True)):
        axes.barh(position + 0.05, stage.seconds, left=begin, height=0.3, color=COLORS[position % len(COLORS)])
    axes.set_xlim(0, total * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show.tick(value)))
    axes.set_xlabel("seconds of compiling", color=MUTED)
    name_strips(axes, [f"{stage.name}, {show.seconds(stage.seconds)}" for stage in stages])
