"""Draw a plot for a page: as an SVG that scales, uses the page's colours, and fetches nothing.

Figures are drawn in placeholder colours, which become CSS variables. So one drawing works in light, dark and print.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torchwise.records import Interval
from torchwise.records import format as show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, GRID, NEUTRAL = "#010101", "#020202", "#030303", "#040404"
COLORS = ("#050505", "#060606", "#070707", "#080808", "#090909", "#0a0a0a")
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", NEUTRAL: "var(--eager)"} | {
    color: f"var(--c{number})" for number, color in enumerate(COLORS, 1)
}
"""The placeholder colours. No figure uses them otherwise, so replacing them is safe."""

WIDTH = 5.0
"""Inches. Narrow, so that the text (10 points) stays readable when the drawing is scaled to a phone."""

HEIGHT_PER_STRIP, HEIGHT_AROUND = 0.52, 0.75
MAX_NAME = 54
LOGARITHMIC, DENSE = 8, 50
"""Ratios of the axis ends from which it is logarithmic, and from which it has ticks only at powers of ten."""
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (1, 1)), (0, (8, 2, 1.5, 2, 1.5, 2)))
"""Line styles that are distinguishable in greyscale, and by colour-blind readers."""
MAX_COUNT = 12
"""Maximum candidates in one plot. The table of candidates holds the others."""

_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: selectable, searchable, in the page's font
    "svg.hashsalt": "torchwise",  # the same study gives the same bytes
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}
_XLINK = "{http://www.w3.org/1999/xlink}href"


def draw(key: str, label: str, height: float, paint: Callable[[Axes], None]) -> str:
    """Return the SVG of one pair of axes, `height` inches high, that `paint` fills.

    The key is unique on the page, and makes the ids unique too. The label describes the picture in words.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    file = io.BytesIO()
    # A name may hold characters that the font, used here for measuring alone, does not have.
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings(action="ignore"):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure.add_subplot())
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return adapt_svg(file.getvalue(), key, label)


def adapt_svg(svg: bytes, key: str, label: str) -> str:
    """Return matplotlib's SVG as part of a page: variables for colours, own ids, no size, no namespace, no rules."""
    root = ElementTree.fromstring(svg)
    _drop(root, ("metadata", "style"))
    for element in root.iter():
        element.tag = _local(element.tag)
        for name, value in list(element.attrib.items()):
            del element.attrib[name]
            element.set("href" if name == _XLINK else _local(name), _adapt_attribute(_local(name), value, key))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("style", "stroke-linejoin:round;stroke-linecap:butt")
    root.set("role", "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def _drop(element: ElementTree.Element, names: tuple[str, ...]) -> None:
    for child in list(element):
        if _local(child.tag) in names:
            element.remove(child)
        else:
            _drop(child, names)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _adapt_attribute(name: str, value: str, key: str) -> str:
    if name == "id":
        return f"{key}-{value}"
    if name == "href":
        return value.replace("#", f"#{key}-", 1)
    if name == "clip-path":
        return value.replace("url(#", f"url(#{key}-")
    if name == "style":
        value = value.replace("url(#", f"url(#{key}-")
        for color, variable in VARIABLES.items():
            value = value.replace(color, variable)
        # Only the size of the font is kept: the face is the page's.
        return re.sub(r"font:[^;]*?([\d.]+px)[^;]*", r"font-size: \1", value)
    return value


@dataclass(frozen=True, slots=True)
class Strip:
    """One interval of a plot, with its name and colour. It is hollow if it stands for something worse."""

    name: str
    interval: Interval
    color: str
    is_hollow: bool = False


def paint_intervals(axes: Axes, strips: Sequence[Strip]) -> None:
    """Draw intervals below each other, each below its name. One that is too uncertain for a figure has no dot."""
    for position, strip in enumerate(strips):
        interval, color = strip.interval, strip.color
        axes.hlines(position + 0.02, interval.low, interval.high, color=color, linewidth=3.5, alpha=0.55)
        if interval.is_usable:
            face = "none" if strip.is_hollow else color
            axes.plot(interval.mid, position + 0.02, "o", color=color, markerfacecolor=face, markersize=7)
    name_strips(axes, [strip.name for strip in strips])


def add_legend(axes: Axes, columns: int = 1, **options: Any) -> None:
    """Add a legend below the axes."""
    axes.figure.legend(loc="outside lower left", fontsize=9, ncols=columns, **options)


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
