"""Draw a plot of a benchmark: a strip per target, a line per mark, and ratios on a logarithmic axis."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchwise.records import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GRID, SHADE = "#222222", "#dddddd", "#f4f4f4"
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#B8A000")
"""Okabe & Ito's palette, which the colour-blind can tell apart. Its yellow is darkened, to be seen on white."""
MARKERS = "s^vPXp<>*h8"
"""Shapes distinguish series with the same colour. Pairs of shape and colour repeat only after 66 series."""
FIXED = {"eager": ("#000000", "o"), "torchwise": ("#D55E00", "D")}
"""Series with the same colour and shape in every plot."""
WIDTH, DPI = 9.0, 150
AROUND, PER_LEGEND_LINE, PER_GROUP, PER_MARK = 1.5, 0.2, 0.2, 0.15
"""Inches of height for each of them. Text stays as readable with sixty targets as with one."""
LEGEND_COLUMNS = 4
MANY_GROUPS = 8
"""Number of targets from which the axis also has ticks at the top."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One point of one series with its interval, hollow if its answers are not correct."""

    series: str
    low: float
    mid: float
    high: float
    is_hollow: bool = False

    @property
    def is_figure(self) -> bool:
        """Whether the interval is narrow enough to draw its middle. Otherwise only the bar is drawn."""
        return self.low == self.high or Interval(self.low, self.mid, self.high).is_usable


@dataclass(frozen=True, slots=True)
class Group:
    """The marks of one target."""

    name: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Contents of a plot.

    Attributes:
        groups: one for each target, from the top down.
        label: label of the axis.
        note: text below the label.
        unit: unit that follows each figure on the axis.
        line: value of the reference line.
    """

    groups: tuple[Group, ...]
    label: str
    note: str
    unit: str
    line: float

    @property
    def series(self) -> list[str]:
        """The names of the series, in order."""
        return list(dict.fromkeys(mark.series for group in self.groups for mark in group.marks))

    @property
    def height(self) -> float:
        """Inches."""
        legend = PER_LEGEND_LINE * -(-len(self.series) // LEGEND_COLUMNS)
        return AROUND + legend + sum(PER_GROUP + PER_MARK * len(group.marks) for group in self.groups)


def draw(picture: Picture, path: Path) -> list[Path]:
    """Draw to `path` with .png and with .svg, and return both paths.

    Raises:
        OSError: a file cannot be written.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = {"font.size": 9, "text.parse_math": False, "svg.hashsalt": "torchwise", "text.color": INK}
    # A name may hold characters that the font does not have.
    with matplotlib.rc_context(settings), warnings.catch_warnings(action="ignore"):
        figure = Figure(figsize=(WIDTH, picture.height), layout="constrained")
        FigureCanvasAgg(figure)
        _paint(figure.add_subplot(), picture)
        files = [path.with_name(f"{path.name}{suffix}") for suffix in (".png", ".svg")]
        figure.savefig(files[0], dpi=DPI)
        figure.savefig(files[1], metadata={"Date": None})
    return files


def _paint(axes: Axes, picture: Picture) -> None:
    axes.set_xscale("log")
    axes.axvline(picture.line, color=INK, linewidth=1, zorder=1)
    styles = {name: _style(name, number) for number, name in enumerate(picture.series)}
    top, middles = 0.0, []
    for number, group in enumerate(picture.groups):
        size = PER_GROUP + PER_MARK * len(group.marks)
        if number % 2 == 0:
            axes.axhspan(top, top + size, color=SHADE, zorder=0, linewidth=0)
        for position, mark in enumerate(group.marks):
            draw_mark(axes, top + PER_GROUP / 2 + PER_MARK * (position + 0.5), mark, styles[mark.series], "white")
        middles.append(top + size / 2)
        top += size
    axes.set_ylim(top, 0)
    axes.set_yticks(middles, [group.name for group in picture.groups])
    _style_axes(axes, picture)
    _legend(axes, styles)


def draw_mark(axes: Axes, place: float, mark: Mark, style: dict[str, Any], background: str) -> None:
    """Draw a mark with its interval. A hollow one is filled with the background. An uncertain one has no marker."""
    ends = [[mark.mid - mark.low], [mark.high - mark.mid]]
    hollow = {"markerfacecolor": background} if mark.is_hollow else {}
    hollow |= {} if mark.is_figure else {"marker": ""}
    axes.errorbar([mark.mid], [place], xerr=ends, elinewidth=1.4, **{**style, **hollow})


def _style(name: str, number: int) -> dict[str, Any]:
    default = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    color, marker = FIXED.get(name, default)
    return {"color": color, "marker": marker, "markersize": 4.5, "linestyle": "", "zorder": 3}


def _style_axes(axes: Axes, picture: Picture) -> None:
    low, high = axes.get_xlim()
    steps = (1, 1.5, 2, 3, 5, 7) if high / low < 20 else (1, 2, 5) if high / low < 500 else (1,)
    scale(axes, picture.unit, steps, max_ticks=30)
    is_tall = len(picture.groups) > MANY_GROUPS
    axes.tick_params(axis="x", top=is_tall, labeltop=is_tall, labelcolor=INK)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(f"{picture.label}\n{picture.note}", color=INK)


def scale(axes: Axes, unit: str, steps: Sequence[float], max_ticks: int) -> None:
    """Put ticks on a logarithmic axis at these multiples of each power of ten, and at most `max_ticks` of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=max_ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{unit}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _legend(axes: Axes, styles: dict[str, dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, **style) for name, style in styles.items()]
    axes.figure.legend(handles=handles, loc="outside upper center", ncols=LEGEND_COLUMNS, frameon=False)
