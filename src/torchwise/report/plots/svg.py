"""Convert a matplotlib figure to SVG for a page: it scales, uses the page's colours, and fetches nothing.

Figures are drawn in placeholder colours, which become CSS variables. So one drawing works in light, dark and print.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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

    Args:
        key: unique on the page. It makes the ids unique too.
        label: description of the picture, in words.
        height: in inches.
        paint: function that fills the axes.
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
