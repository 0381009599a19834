"""The plots of a benchmark in the colours of a page, light and dark, with the figures behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchwise.records.benchmark import Benchmark
from torchwise.report import format as show
from torchwise.report.bench.drawing import MARKERS, Mark, Picture, draw_mark, scale
from torchwise.report.bench.plots import roofline_picture, speedup_picture
from torchwise.report.plots.plot import Plot
from torchwise.report.plots.strips import MAX_NAME
from torchwise.report.plots.svg import COLORS, INK, MUTED, NEUTRAL, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PER_NAME, PER_MARK, AROUND = 0.3, 0.17, 1.2
"""Inches of height for each of them."""
LEGEND_COLUMNS = 2
FIXED = {"eager": (NEUTRAL, "o"), "torchwise": (COLORS[1], "D")}
"""Series with the same colour and shape in every plot."""
OTHERS = (COLORS[0], *COLORS[2:])


def plots(benchmark: Benchmark) -> list[Plot]:
    """Return speed-up over eager, and the share of the roofline if it is known."""
    speedups, shares = speedup_picture(benchmark), roofline_picture(benchmark)
    found = []
    if speedups.groups:
        caption = (
            "Right of 1× is faster than eager. Bars are 95 % intervals. A hollow mark means that the answers are not "
            "correct. A bar without a mark is inconclusive, as its interval is too wide."
        )
        found.append(_plot("speedup", "Speed-up over eager", speedups, caption))
    if shares.groups:
        caption = "The minimum time for the work on this hardware, divided by the measured time. 100 % is the optimum."
        found.append(_plot("roofline", "Share of the roofline", shares, caption))
    return found


def _plot(key: str, title: str, picture: Picture, caption: str) -> Plot:
    right = [(group.name, mark) for group in picture.groups for mark in group.marks if not mark.is_hollow]
    best = max((pair for pair in right if pair[1].is_figure), key=_mid, default=None)
    nothing = (
        "Inconclusive: no contender with correct answers has a reliable speed-up." if right else "No answer is correct."
    )
    summary = nothing if best is None else f"The highest is {_describe_mark(best[1], picture)}, on {best[0]}."
    names = {name: _style(name, place) for place, name in enumerate(picture.series)}
    lines = -(-len(names) // LEGEND_COLUMNS)
    height = AROUND + 0.2 * lines + sum(PER_NAME + PER_MARK * len(group.marks) for group in picture.groups)
    return Plot(
        key=key,
        title=title,
        summary=summary,
        caption=caption,
        svg=draw(key, summary, height, lambda axes: _paint(axes, picture, names)),
        header=("target", "contender", picture.unit.strip(), "answers"),
        table=tuple(
            (group.name, mark.series, _figure(mark, picture), "not right" if mark.is_hollow else "right")
            for group in picture.groups
            for mark in group.marks
        ),
    )


def _paint(axes: Axes, picture: Picture, styles: dict[str, dict[str, Any]]) -> None:
    axes.set_xscale("log")
    axes.axvline(picture.line, color=INK, linewidth=1, zorder=1)
    place = 0.0
    for group in picture.groups:
        name = show.truncate(group.name, MAX_NAME)
        where = axes.get_yaxis_transform()
        axes.text(0, place + PER_NAME * 0.6, name, transform=where, va="center", color=INK, fontsize=9)
        place += PER_NAME
        for mark in group.marks:
            draw_mark(axes, place + PER_MARK / 2, mark, styles[mark.series], "none")
            place += PER_MARK
    axes.set_ylim(place + PER_MARK, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    low, high = axes.get_xlim()
    steps = (1, 1.5, 2, 3, 5) if high / low < 10 else (1, 2, 5) if high / low < 100 else (1,)
    scale(axes, picture.unit, steps, max_ticks=12)
    _legend(axes, styles)


def _style(name: str, place: int) -> dict[str, Any]:
    color, marker = FIXED.get(name, (OTHERS[place % len(OTHERS)], MARKERS[place % len(MARKERS)]))
    return {"color": color, "marker": marker, "markersize": 5, "linestyle": ""}


def _legend(axes: Axes, styles: dict[str, dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=show.truncate(name, 28), **style) for name, style in styles.items()]
    axes.figure.legend(handles=handles, loc="outside lower left", fontsize=9, ncols=LEGEND_COLUMNS, labelcolor=MUTED)


def _mid(pair: tuple[str, Mark]) -> float:
    return pair[1].mid


def _describe_mark(mark: Mark, picture: Picture) -> str:
    return f"{mark.series}, at {show.three(mark.mid)}{picture.unit}"


def _figure(mark: Mark, picture: Picture) -> str:
    if mark.low == mark.high:
        return f"{show.three(mark.mid)}{picture.unit}"
    if not mark.is_figure:
        return f"{show.three(mark.low)}{picture.unit} to {show.three(mark.high)}{picture.unit}"
    return f"{show.three(mark.mid)}{picture.unit} [{show.three(mark.low)}, {show.three(mark.high)}]"
