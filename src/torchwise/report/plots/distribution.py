"""Distribution of timing samples: the share of them within a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchwise.report import format as show
from torchwise.report.plots.cost import DASHES
from torchwise.report.plots.plot import Plot
from torchwise.report.plots.strips import scale_time
from torchwise.report.plots.svg import COLORS, MUTED, NEUTRAL, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENTILES = (0.5, 0.95, 0.99)
MAX_POINTS = 300
"""Maximum number of evenly chosen points of a distribution. More would only make the page larger."""
SHOWN = 0.995
"""Share of the samples within the axis. A single outlier must not compress the rest."""
_STYLES = ((COLORS[0], "-"), (NEUTRAL, DASHES[1]))


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one side in seconds, in any order."""

    name: str
    seconds: Sequence[float]


def distribution_plot(own: Samples, eager: Samples, *, title: str, unit: str, caption: str) -> Plot:
    """Return the distributions of a plan's samples and of eager's.

    Args:
        own: samples of the plan.
        eager: samples of eager.
        title: title of the plot.
        unit: the timed unit of a sample, such as "call".
        caption: text to add to the caption.
    """
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
        svg=draw("latency", summary, 3.4, lambda axes: _paint(axes, sides, unit)),
        header=("", f"{unit}s", "minimum", "p50", "p95", "p99", "maximum"),
        table=tuple(map(_row, sides)),
    )


def _paint(axes: Axes, sides: Sequence[Samples], unit: str) -> None:
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
    axes.figure.legend(loc="outside lower left", fontsize=9, handlelength=3)


def _row(side: Samples) -> tuple[str, ...]:
    found = np.quantile(side.seconds, (0.0, *PERCENTILES, 1.0))
    return (side.name, show.count(len(side.seconds)), *(show.seconds(float(value)) for value in found))
