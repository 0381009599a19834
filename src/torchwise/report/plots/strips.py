"""Shared parts of plots with one strip per plan. Names are above the strips, which use the whole width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from torchwise.report import format as show
from torchwise.report.plots.svg import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT_PER_STRIP, HEIGHT_AROUND = 0.52, 0.75
MAX_NAME = 54
LOGARITHMIC, DENSE = 8, 50
"""Ratios of the axis ends from which it is logarithmic, and from which it has ticks only at powers of ten."""


def height(strips: int) -> float:
    """Return the height in inches of a plot with this many strips."""
    return HEIGHT_AROUND + HEIGHT_PER_STRIP * strips


def name_strips(axes: Axes, names: Sequence[str]) -> None:
    """Write each name above its strip, the first on top, and remove the vertical axis."""
    axes.set_ylim(len(names) - 0.35, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    for position, name in enumerate(names):
        text = show.truncate(name, MAX_NAME)
        axes.text(0, position - 0.34, text, transform=axes.get_yaxis_transform(), va="center", color=INK, fontsize=9)


def scale_time(axes: Axes, letter: Literal["x", "y"], low: float, high: float) -> None:
    """Give an axis of seconds readable ticks. It is logarithmic if it spans more than a factor of eight."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    axis = axes.xaxis if letter == "x" else axes.yaxis
    if low > 0 and high / low > LOGARITHMIC:
        (axes.set_xscale if letter == "x" else axes.set_yscale)("log")
        axis.set_major_locator(FixedLocator(round_times(low, high)))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show.tick(value)))


def round_times(low: float, high: float) -> list[float]:
    """Return round times between `low` and `high`: 10 ms, 1 s, 10 s, 1 min, 10 min, 1 h."""
    steps = (1, 2, 5) if high / low < DENSE else (1,)
    below_a_minute = [step * 10.0**power for power in range(-9, 2) for step in steps]
    units = [(60.0, (1, 10)), (3600.0, (1, 10)), (86_400.0, (10, 100, 1000, 10_000))]
    above = [unit * factor * step for unit, factors in units for factor in factors for step in steps]
    return [time for time in sorted({*below_a_minute, *above}) if low <= time <= high]
