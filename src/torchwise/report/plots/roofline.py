"""Kernels against the roofline: the time of each, over the minimum time for its work on this hardware.

The axes are in time, not in FLOPs per second. So the plot can also show kernels that only move data.

Source: Wang et al., Time-Based Roofline for Deep Learning Performance Analysis, DLS 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchwise.records.explanation import Kernel, Limits
from torchwise.report import format as show
from torchwise.report.plots.plot import MAX_COUNT, Plot
from torchwise.report.plots.strips import scale_time
from torchwise.report.plots.svg import COLORS, INK, MUTED, draw

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


def roofline_plot(kernels: Sequence[Kernel], limits: Limits | None) -> Plot | None:
    """Return the plot of the longest kernels whose work is known, or None if there are none."""
    known = [kernel for kernel in kernels if kernel.share and kernel.seconds][:MAX_COUNT]
    if limits is None or not known:
        return None
    marks = [
        _Mark(i, kernel, kernel.seconds * (kernel.share or 0.0), limits.is_compute_bound(kernel))
        for i, kernel in enumerate(known, 1)
    ]
    first = known[0]
    summary = f"{show.truncate(first.name, 60)}, the longest, reaches {show.percent(first.share)} of the roofline."
    return Plot(
        key="roofline",
        title="Kernels against the roofline",
        summary=summary,
        caption=f"Measured here: copies of {show.three(limits.bandwidth / 1e9)} GB/s, matrix products of "
        f"{show.three(limits.flops / 1e9)} GFLOP/s. The solid line is the roofline, for data that no cache holds. "
        "Kernels that are high up and far from the line have the largest potential saving. The numbers refer to the "
        "table.",
        svg=draw("roofline", summary, 4.0, lambda axes: _paint(axes, marks)),
        header=("", "kernel", "time", "minimum", "share", "bound by"),
        table=tuple(map(_row, marks)),
    )


def _paint(axes: Axes, marks: Sequence[_Mark]) -> None:
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
    axes.figure.legend(loc="outside lower left", fontsize=9, ncols=2, handlelength=2.5)


def _row(mark: _Mark) -> tuple[str, ...]:
    kernel = mark.kernel
    figures = (show.seconds(kernel.seconds), show.seconds(mark.minimum_s), show.percent(kernel.share))
    return (str(mark.number), kernel.name, *figures, "FLOPs" if mark.computes else "bytes")
