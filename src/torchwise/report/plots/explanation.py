"""The plots of an explanation: kernels against the roofline, stages of compiling, and the time of calls.

The axes of the roofline are in time, not in FLOPs per second. So it can also show kernels that only move data.
Source: Wang et al., Time-Based Roofline for Deep Learning Performance Analysis, DLS 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from torchwise.records import format as show
from torchwise.records.explanation import Explanation, Kernel, Limits, Stage
from torchwise.report.document import Plot
from torchwise.report.plots.analysis import Samples, distribution_plot
from torchwise.report.plots.drawing import (
    COLORS,
    INK,
    MAX_COUNT,
    MUTED,
    add_legend,
    draw,
    height,
    name_strips,
    scale_time,
)
from torchwise.report.plots.regions import regions_plot
from torchwise.report.plots.study import scale_samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES = ((1.0, "-"), (0.1, (0, (6, 2))), (0.01, (0, (1.5, 2))))
"""Shares of the roofline that have a line."""
AROUND = 2.0
"""Factor by which the axes go beyond the outermost kernels."""


@dataclass(frozen=True, slots=True)
class _Mark:
    number: int
    kernel: Kernel
    minimum_s: float
    computes: bool


def plots(explanation: Explanation) -> list[Plot]:
    """Return the plots that the explanation has the records for."""
    found = (
        roofline_plot(explanation.kernels, explanation.limits),
        timeline_plot(explanation.stages),
        regions_plot(explanation.regions),
        _latency(explanation),
    )
    return [plot for plot in found if plot]


def _latency(explanation: Explanation) -> Plot | None:
    timed = explanation.measurement
    if not timed.candidate_s or not timed.baseline_s:
        return None
    name = "torch.compile" if explanation.plan is None else show.truncate(str(explanation.plan), 40)
    mean = "" if timed.calls_per_round == 1 else "the mean of "
    call_s = explanation.execution.call_s.mid
    return distribution_plot(
        Samples(name, scale_samples(timed.candidate_s, call_s)),
        Samples("eager", scale_samples(timed.baseline_s, call_s * timed.speedup.mid)),
        title="Time of a call",
        unit="round",
        caption=f" A round is {mean}{show.pluralize(timed.calls_per_round, 'call')}, in alternation with eager's. "
        "Eager's times are scaled to agree with the speed-up.",
    )


def roofline_plot(kernels: Sequence[Kernel], limits: Limits | None) -> Plot | None:
    """Return the plot of the longest kernels whose work is known, or None if there are none."""
    if limits is None:
        return None
    marks = [
        _Mark(number, kernel, kernel.seconds * kernel.share, limits.is_compute_bound(kernel))
        for number, kernel in enumerate(kernels, 1)
        if kernel.share and kernel.seconds
    ][:MAX_COUNT]
    if not marks:
        return None
    first, is_longest = marks[0].kernel, marks[0].number == 1
    which = "the longest" if is_longest else "the longest whose work is known"
    summary = f"{show.truncate(first.name, 60)}, {which}, reaches {show.percent(first.share)} of the roofline."
    return Plot(
        key="roofline",
        title="Kernels against the roofline",
        summary=summary,
        caption=f"Measured here: copies of {show.three(limits.bandwidth / 1e9)} GB/s, matrix products of "
        f"{show.three(limits.flops / 1e9)} GFLOP/s. The solid line is the roofline, for data that no cache holds. "
        "Kernels that are high up and far from the line have the largest potential saving. The numbers are those of "
        "the table of kernels.",
        svg=draw("roofline", summary, 4.0, lambda axes: _paint_roofline(axes, marks)),
        header=("", "kernel", "time", "minimum", "share", "bound by"),
        table=tuple(map(_roofline_cells, marks)),
    )


def _paint_roofline(axes: Axes, marks: Sequence[_Mark]) -> None:
    for computes, color, form, label in ((False, COLORS[0], "o", "moves data"), (True, COLORS[1], "s", "computes")):
        of_kind = [mark for mark in marks if mark.computes is computes]
        if of_kind:
            x, y = [mark.minimum_s for mark in of_kind], [mark.kernel.seconds for mark in of_kind]
            axes.plot(x, y, form, color=color, markersize=7, linestyle="none", label=label)
    low, high = min(mark.minimum_s for mark in marks) / AROUND, max(mark.kernel.seconds for mark in marks) * AROUND
    high = max(high, low * 20)  # enough for an axis of powers of ten
    for share, dash in SHARES:
        label = f"{show.percent(share)} of the roofline"
        axes.plot([low, high], [low / share, high / share], color=INK, linewidth=1, linestyle=dash, label=label)
    for mark in marks:
        axes.annotate(str(mark.number), (mark.minimum_s, mark.kernel.seconds), (6, 3), textcoords="offset points")
    scale_time(axes, "x", low, high)
    scale_time(axes, "y", low, high)
    axes.set(xlim=(low, high), ylim=(low, high))
    axes.set_xlabel("minimum time for the work", color=MUTED)
    axes.set_ylabel("time in a call", color=MUTED)
    add_legend(axes, columns=2, handlelength=2.5)


def _roofline_cells(mark: _Mark) -> tuple[str, ...]:
    kernel = mark.kernel
    figures = (show.seconds(kernel.seconds), show.seconds(mark.minimum_s), show.percent(kernel.share))
    return (str(mark.number), kernel.name, *figures, "FLOPs" if mark.computes else "bytes")


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
        caption="Orange is the longest stage. Each begins at the end of the one before it. If several "
        "graphs are compiled, each bar is the sum of a stage's time over all graphs.",
        svg=draw("stages", summary, height(len(stages)), lambda axes: _paint_stages(axes, stages, longest)),
        header=("stage", "time", "share"),
        table=tuple((s.name, show.seconds(s.seconds), show.percent(s.seconds / total)) for s in stages),
    )


def _paint_stages(axes: Axes, stages: Sequence[Stage], longest: Stage) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    begins = accumulate((stage.seconds for stage in stages[:-1]), initial=0.0)
    for position, (stage, begin) in enumerate(zip(stages, begins, strict=True)):
        color = COLORS[1 if stage is longest else 0]
        axes.barh(position + 0.05, stage.seconds, left=begin, height=0.3, color=color)
    axes.set_xlim(0, sum(stage.seconds for stage in stages) * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show.tick(value)))
    axes.set_xlabel("seconds of compiling", color=MUTED)
    name_strips(axes, [f"{stage.name}, {show.seconds(stage.seconds)}" for stage in stages])
