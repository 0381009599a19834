"""The plots of an analysis: latency call by call, cost over calls, memory, and scaling over batch sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from torchwise.plan import Numerics
from torchwise.records import Study, StudyState
from torchwise.records import format as show
from torchwise.records.analysis import Analysis, Memory
from torchwise.report.document import Plot
from torchwise.report.plots.drawing import (
    COLORS,
    DASHES,
    INK,
    MUTED,
    NEUTRAL,
    add_legend,
    draw,
    height,
    name_strips,
    scale_time,
)
from torchwise.report.plots.study import cost_plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENTILES = (0.5, 0.95, 0.99)
MAX_POINTS = 300
"""Maximum number of evenly chosen points of a distribution. More would only make the page larger."""
SHOWN = 0.995
"""Share of the samples within the axis. A single outlier must not compress the rest."""
_STYLES = ((COLORS[0], "-"), (NEUTRAL, DASHES[1]))
MAX_MARKS = 4
"""Maximum number of ticks on an axis of bytes, whose labels are long."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one side in seconds, in any order."""

    name: str
    seconds: Sequence[float]


def plots(analysis: Analysis) -> list[Plot]:
    """Return the plots that the analysis has the records for."""
    found = (latency_plot(analysis), cost_plot(_as_study(analysis)), memory_plot(analysis), throughput_plot(analysis))
    return [plot for plot in found if plot]


def latency_plot(analysis: Analysis) -> Plot | None:
    """Return the distribution of single calls, of the plan and of eager."""
    if analysis.calls is None:
        return None
    own, eager = analysis.calls
    return distribution_plot(
        Samples(show.truncate(str(analysis.plan), 40), own.calls_s),
        Samples("eager", eager.calls_s),
        title="Time of single calls",
        unit="call",
        caption=" The calls are from a second process, scaled to agree with the other times.",
    )


def memory_plot(analysis: Analysis) -> Plot | None:
    """Return the memory of the plan and of eager, and the memory to reserve."""
    used = analysis.steady.memory if analysis.steady else None
    if used is None or used.reserve is None:
        return None
    bars = _bars(analysis, used)
    summary = f"Reserve {show.size(used.reserve)} of memory."

    def paint(axes: Axes) -> None:
        for place, (_, parts) in enumerate(bars):
            left = 0.0
            for (label, size), color in zip(parts, COLORS, strict=False):
                axes.barh(place + 0.05, size, left=left, height=0.42, color=color, label=label if place == 0 else None)
                left += size
        axes.axvline(used.reserve or 0, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        name_strips(axes, [name for name, _ in bars])
        _scale_bytes(axes, used.reserve or 1)
        axes.set_xlim(0, (used.reserve or 1) * 1.08)
        add_legend(axes, columns=3)

    return Plot(
        key="memory",
        title="Memory",
        summary=summary,
        caption="Memory in use during a call, and while the plan starts with warm caches. The dashed line is the "
        "memory to reserve: the longest bar plus a margin.",
        svg=draw("memory", summary, height(len(bars)) + 0.5, paint),
        header=("", "model", "inputs", "peak"),
        table=tuple((name, *(show.size(size) for _, size in parts)) for name, parts in bars),
    )


def throughput_plot(analysis: Analysis) -> Plot | None:
    """Return throughput over the batch size, or None for fewer than two sizes."""
    timed = [figures for figures in analysis.batch_figures if figures.speedup.is_usable and figures.is_comparable]
    if len(timed) < 2:
        return None
    name = show.truncate(str(analysis.plan), 40)
    sizes = [batch.size for batch in timed]
    own, eager = [b.throughput for b in timed], [b.baseline_throughput for b in timed]
    best = max(timed, key=lambda batch: batch.throughput)
    summary = f"{name} has its highest throughput at batch {best.size}: {show.three(best.throughput)} items per second."

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        axes.plot(sizes, own, "o-", color=COLORS[0], linewidth=1.8, label=name)
        axes.plot(sizes, eager, "s", color=NEUTRAL, linewidth=1.8, linestyle=DASHES[1], label="eager")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show.three(value)))
        axes.set_xlabel("batch size", color=MUTED)
        axes.set_ylabel("items per second", color=MUTED)
        add_legend(axes, handlelength=3)

    return Plot(
        key="scaling",
        title="Throughput over the batch size",
        summary=summary,
        caption="Both axes are logarithmic. If throughput grows as fast as the batch, a larger batch takes no longer. "
        "If it is flat, a larger batch takes proportionally longer.",
        svg=draw("scaling", summary, 3.4, paint),
        header=("batch", "items per second", "eager"),
        table=tuple(
            (show.count(size), show.three(a), show.three(b)) for size, a, b in zip(sizes, own, eager, strict=True)
        ),
    )


def _as_study(analysis: Analysis) -> Study:
    """Return the analysis as a study of one plan, for the plots of studies.

    All times are scaled by its baseline. If the speed-up is too uncertain, no costs are drawn.
    """
    is_figure = analysis.speedup is not None and analysis.speedup.is_usable
    is_drawn = analysis.trial.is_verified and not analysis.plan.is_eager and is_figure
    trials = (analysis.tried,) if is_drawn else ()
    return Study(
        id=0,
        workload=analysis.workload,
        environment=analysis.environment,
        inspection=replace(analysis.inspection, measurement=analysis.eager),
        allow=Numerics.SUBSTITUTED,
        effort=analysis.effort,
        state=StudyState.DECIDED,
        trials=trials,
        decision=None,
        created_at=analysis.created_at,
    )


def _bars(analysis: Analysis, used: Memory) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
    named = (
        (show.truncate(str(analysis.plan), 40), used.call),
        ("eager", used.baseline_call),
        ("the plan's warm start", used.start),
    )
    return [
        (name, (("model", used.model), ("inputs", used.inputs), ("peak", peak)))
        for name, peak in named
        if peak is not None
    ]


def _scale_bytes(axes: Axes, largest: float) -> None:
    """Put ticks at round sizes: 100 MiB, not 95.4 MiB."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    unit = 1024.0 ** int(math.log(largest, 1024))
    steps = [unit * factor / 1024 for factor in (100, 200, 500)]
    steps += [unit * factor * power for power in (1, 10, 100) for factor in (1, 2, 5)]
    axes.xaxis.set_major_locator(MultipleLocator(next(step for step in steps if largest / step <= MAX_MARKS)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show.size(value)))


def distribution_plot(own: Samples, eager: Samples, *, title: str, unit: str, caption: str) -> Plot:
    """Return the distributions of a plan's samples and of eager's."""
    sides = (own, eager)
    half, p99 = (show.seconds(float(np.quantile(own.seconds, share))) for share in (0.5, 0.99))
    summary = f"Half of the {unit}s of {own.name} take at most {half}, 99 % at most {p99}."
    return Plot(
        key="latency",
        title=title,
        summary=summary,
        caption=f"Share of the {unit}s that take at most a given time. A steeper line means less variation. Dots "
        f"are the 50th, 95th and 99th percentiles. The slowest 0.5 % may lie beyond the axis, but are in the "
        f"table.{caption}",
        svg=draw("latency", summary, 3.4, lambda axes: _paint_distribution(axes, sides, unit)),
        header=("", f"{unit}s", "minimum", "p50", "p95", "p99", "maximum"),
        table=tuple(map(_distribution_cells, sides)),
    )


def _paint_distribution(axes: Axes, sides: Sequence[Samples], unit: str) -> None:
    for side, (color, dash) in zip(sides, _STYLES, strict=True):
        shares = np.linspace(0, 1, min(MAX_POINTS, len(side.seconds)))
        found = np.quantile(side.seconds, shares)
        axes.plot(found, shares * 100, color=color, linewidth=1.8, linestyle=dash, label=side.name)
        axes.plot(np.quantile(side.seconds, PERCENTILES), np.multiply(PERCENTILES, 100), "o", color=color, markersize=5)
    low = min(min(side.seconds) for side in sides)
    high = max(float(np.quantile(side.seconds, SHOWN)) for side in sides)
    scale_time(axes, "x", low, high)
    axes.set_xlim(low * 0.97, high * 1.05)
    axes.set_xlabel(f"time of a {unit}", color=MUTED)
    axes.set_ylabel(f"{unit}s within this time, %", color=MUTED)
    add_legend(axes, handlelength=3)


def _distribution_cells(side: Samples) -> tuple[str, ...]:
    found = np.quantile(side.seconds, (0.0, *PERCENTILES, 1.0))
    return (side.name, show.count(len(side.seconds)), *(show.seconds(float(value)) for value in found))
