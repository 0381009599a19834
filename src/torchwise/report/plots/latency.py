"""Latency samples: every round of a plan, and the rounds of eager that alternated with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torchwise.records import Study
from torchwise.report import format as show
from torchwise.report.plots.plot import Plot, Series, series_of
from torchwise.report.plots.strips import height, name_strips, scale_time
from torchwise.report.plots.svg import INK, MUTED, NEUTRAL, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_DOTS = 120
"""Maximum number of dots per plan. More would only make the page larger."""
TAIL = 1.25
"""Ratio of the axis end to the 95th percentile. A single outlier must not compress the rest."""


def latency_plot(study: Study) -> Plot | None:
    """Return the plot, or None if nothing was timed."""
    found = series_of(study)
    if not found:
        return None
    medians = {series.row.name: series.row.time.mid for series in found if series.is_ranked and series.row.time}
    fastest = min(medians, key=lambda name: medians[name], default=None)
    summary = "No timed plan was verified."
    if fastest:
        summary = f"{fastest} has the shortest median time per call, {show.seconds(medians[fastest])}."
    return Plot(
        key="latency",
        title="Time per call",
        summary=summary,
        caption="Each dot is one round of a plan. The grey dots below are eager's rounds, which alternated with them "
        "in the same process. Each process is scaled so that its medians agree with the table. The thin bar spans the "
        "middle 90 %, the thick bar the middle 50 %, and the stroke is the median. At most "
        f"{MAX_DOTS} evenly chosen rounds are drawn. Rare outliers may lie beyond the axis, but are in the table.",
        svg=draw("latency", summary, height(len(found)), lambda axes: _paint(axes, found)),
        header=("plan", "rounds", "minimum", "5 %", "median", "95 %", "maximum"),
        table=tuple(line for series in found for line in _lines(series)),
    )


def _samples(series: Series) -> Sequence[float]:
    if not series.row.trial:
        return series.measurement.baseline_s
    return _scale_samples(series.measurement.candidate_s, series.row.time.mid if series.row.time else None)


def _eager(series: Series) -> Sequence[float]:
    """Return eager's rounds that alternated with a plan, on the scale of eager's time in this study."""
    row = series.row
    eager_s = row.time.mid * row.speedup.mid if row.time and row.speedup else None
    return _scale_samples(series.measurement.baseline_s, eager_s)


def _scale_samples(samples: Sequence[float], median: float | None) -> Sequence[float]:
    """Return samples scaled to this median."""
    factor = 1.0 if median is None else median / float(np.median(samples))
    return [sample * factor for sample in samples]


def _paint(axes: Axes, found: list[Series]) -> None:
    low, high = np.inf, 0.0
    for position, series in enumerate(found):
        values = np.asarray(_samples(series))
        _dots(axes, values, position + 0.02, series.color)
        if series.row.trial and series.measurement.baseline_s:
            eager = np.asarray(_eager(series))
            _dots(axes, eager, position + 0.26, NEUTRAL)
            values = np.concatenate([values, eager])
        _bars(axes, np.asarray(_samples(series)), position + 0.02, series.color)
        low, high = min(low, float(values.min())), max(high, float(np.quantile(values, 0.95)))
    scale_time(axes, "x", low, high)
    axes.set_xlim(low * 0.97, min(high * TAIL, high + (high - low) * 0.5) * 1.02)
    axes.set_xlabel("time per call", color=MUTED)
    name_strips(axes, [series.row.name for series in found])


def _dots(axes: Axes, values: np.ndarray, position: float, color: str) -> None:
    chosen = values[np.unique(np.linspace(0, len(values) - 1, min(len(values), MAX_DOTS)).round().astype(int))]
    jitter = np.random.default_rng(0).uniform(-0.09, 0.09, len(chosen))
    axes.plot(chosen, position + jitter, "o", color=color, markersize=2.6, alpha=0.45, markeredgewidth=0)


def _bars(axes: Axes, values: np.ndarray, position: float, color: str) -> None:
    if len(values) < 3:  # one or two rounds have no meaningful spread
        return
    low, first, middle, third, high = np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95))
    axes.hlines(position, low, high, color=color, linewidth=1.4)
    axes.hlines(position, first, third, color=color, linewidth=5, alpha=0.6)
    axes.vlines(middle, position - 0.13, position + 0.13, color=INK, linewidth=1.6)


def _lines(series: Series) -> list[tuple[str, ...]]:
    lines = [_line(series.row.name, _samples(series))]
    if series.row.trial and series.measurement.baseline_s:
        lines.append(_line(f"eager, alternating with {series.row.name}", _eager(series)))
    return lines


def _line(name: str, values: Sequence[float]) -> tuple[str, ...]:
    quantiles = np.quantile(np.asarray(values), (0.0, 0.05, 0.5, 0.95, 1.0))
    return (name, show.count(len(values)), *(show.seconds(float(value)) for value in quantiles))
