"""The plot of accuracy lost for speed won, for studies that tried plans of lower precision, fewer bits or others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from torchwise.errors import PlanError
from torchwise.plan import Numerics, Plan
from torchwise.plan.space import numerics_of
from torchwise.plan.workload_spec import DISTRIBUTION
from torchwise.records import Figure, Interval, Outcome, Study, Trial
from torchwise.records import format as show
from torchwise.records.candidates import rows
from torchwise.records.reasons import workload_of
from torchwise.report.document import Plot
from torchwise.report.plots.drawing import INK, MAX_NAME, MUTED, NEUTRAL, add_legend, draw
from torchwise.report.plots.study import Series, series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST = 1e-8
"""The least loss on the axis, which is logarithmic: float32 rounds to no less, and a metric may lose nothing."""
COLUMNS_FROM = 4
"""Plans from which on the legend has two columns."""


@dataclass(frozen=True, slots=True)
class _Point:
    series: Series
    speedup: Interval
    lost: float

    @property
    def is_figure(self) -> bool:
        """Whether it is verified, with a speed-up that is certain enough for a figure."""
        return self.series.is_verified and self.series.is_right and self.speedup.is_usable


def accuracy_plot(study: Study) -> Plot | None:
    """Return the loss of each timed plan over its speed-up, or None if no plan may lose more than roundings do.

    There is no size of a loss where plans keep the distribution of outputs or fail.
    """
    spec = workload_of(study)
    if spec.metric == DISTRIBUTION:
        return None
    points = [
        _Point(series, series.row.speedup, lost)
        for series in series_of(study)
        if series.row.trial and series.row.speedup and (lost := measure_loss(series.row.trial, spec.metric)) is not None
    ]
    if not points or not any(_may_lose(trial.plan) for trial in study.trials):
        return None
    kind = "share of the metric that is lost" if spec.metric else "error (relative, root mean square)"
    allowed = "" if spec.tolerance is None else f" The dashed line is the allowed {spec.tolerance:g}."
    summary = _describe(points, bool(spec.metric))
    return Plot(
        key="accuracy",
        title="Accuracy lost for speed won",
        summary=summary,
        caption="Each dot is a plan: right of 1 is faster than eager, and higher is less accurate. The bar is the 95 % "
        f"interval. The grey line joins plans that no other, nor eager, beats in both.{allowed} A hollow dot was not "
        "verified. Plans that were refused before they were timed are in the table alone.",
        svg=draw("accuracy", summary, 3.4 + 0.2 * len(points), lambda axes: _paint(axes, points, spec.tolerance, kind)),
        header=("plan", "speed-up", kind, "answer"),
        table=tuple(_list_cells(study, spec.metric)),
    )


def measure_loss(trial: Trial, metric: str | None) -> float | None:
    """Return the error of a plan, or the share of the metric that it loses, or None if nobody measured it.

    A metric is taken of plans with other operators and numbers alone. A verified plan of the same precision loses
    nothing of it.
    """
    verdict = trial.verdict
    if verdict is None or metric is None:
        return None if verdict is None else verdict.error
    found = [check.figures[Figure.METRIC_LOST] for check in verdict.checks if Figure.METRIC_LOST in check.figures]
    if found:
        return max(found)
    return None if verdict.outcome is not Outcome.PASS or _may_lose(trial.plan) else 0.0


def _may_lose(plan: Plan) -> bool:
    try:
        return not Numerics.SAME_PRECISION.allows(numerics_of(plan))
    except PlanError:  # it names a choice of a plug-in that is not here
        return False


def _list_cells(study: Study, metric: str | None) -> list[tuple[str, ...]]:
    tried = [row for row in rows(study) if row.trial and row.trial.verdict]
    losses = [measure_loss(row.trial, metric) if row.trial else None for row in tried]
    return [
        (row.name, show.speedup(row.speedup), show.relative_error(lost), row.verdict or show.NONE)
        for row, lost in zip(tried, losses, strict=True)
    ]


def list_best(points: Sequence[_Point]) -> list[_Point]:
    """Return the verified plans that no other beats in both speed and loss, nor eager, the fastest first."""
    faster = (point for point in points if point.is_figure and point.speedup.mid > 1)
    ranked = sorted(faster, key=lambda one: (-one.speedup.mid, one.lost))
    least = list(accumulate((point.lost for point in ranked), min))
    return [point for place, point in enumerate(ranked) if place == 0 or point.lost < least[place - 1]]


def _describe(points: Sequence[_Point], has_metric: bool) -> str:
    best = list_best(points)
    if not best:
        return "No plan that beats eager was verified and timed precisely enough to be compared."

    def tell(point: _Point) -> str:
        lost = f"{show.percent(point.lost)} of the metric" if has_metric else f"{show.relative_error(point.lost)}"
        return f"{show.brief_speedup(point.speedup)} for {'a loss of ' if has_metric else 'an error of '}{lost}"

    first, last = best[0], best[-1]
    rest = "" if first is last else f" {last.series.row.name} is the most accurate of those that lead, at {tell(last)}."
    return f"{first.series.row.name} is the fastest verified plan, at {tell(first)}.{rest}"


def _paint(axes: Axes, points: Sequence[_Point], tolerance: float | None, kind: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    best = list_best(points)
    axes.plot([p.speedup.mid for p in best], [_raise(p.lost) for p in best], color=NEUTRAL, linewidth=1.2, zorder=1)
    for point in points:
        color, height = point.series.color, _raise(point.lost)
        axes.hlines(height, point.speedup.low, point.speedup.high, color=color, linewidth=3, alpha=0.45)
        if point.speedup.is_usable:
            name, face = show.truncate(point.series.row.name, MAX_NAME), color if point.series.is_right else "none"
            axes.plot([point.speedup.mid], [height], "o", color=color, markerfacecolor=face, markersize=7, label=name)
    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    if tolerance is not None:
        axes.axhline(_raise(tolerance), color=MUTED, linewidth=1.4, linestyle=(0, (6, 2)))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlabel("eager's time over the plan's", color=MUTED)
    axes.set_ylabel(kind, color=MUTED)
    add_legend(axes, columns=1 + (len(points) > COLUMNS_FROM))


def _raise(lost: float) -> float:
    return max(lost, LEAST)
