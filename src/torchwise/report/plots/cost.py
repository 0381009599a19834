"""Total time over the number of calls, with the break-even point of each plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchwise.records import Study
from torchwise.records import format as show
from torchwise.records.reasons import Cost, baseline_cost, cost_of, workload_of
from torchwise.report.document import Plot
from torchwise.report.plots.drawing import COLORS, DASHES, INK, MAX_NAME, MUTED, add_legend, draw, scale_time
from torchwise.report.plots.study import series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    summary = (
        f"{first.name} is the first to pay back, after {_calls(first.break_even)}." if first else "No plan pays back."
    )
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


def _row(name: str, cost: Cost, break_even: float | None, calls: int) -> tuple[str, ...]:
    paid = show.NONE if break_even is None else _calls(break_even)
    return (
        name,
        show.seconds(cost.fixed_s),
        show.seconds(cost.per_call_s),
        paid,
        show.seconds(cost.seconds_after(calls)),
    )


def _calls(value: float) -> str:
    if not math.isfinite(value):
        return "never"
    return "the first call" if value < 1 else f"{show.count(value)} calls"


def _short(value: float) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g}"
