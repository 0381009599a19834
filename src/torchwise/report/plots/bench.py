"""The plots of a benchmark, for a page and as files: speed-up over eager, and the share of the roofline."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchwise.errors import InputError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Interval
from torchwise.records import format as show
from torchwise.records.benchmark import EAGER, PERMITTED, TORCHWISE, Benchmark, Row
from torchwise.records.scale import Scale, ScaledRow, scale_of
from torchwise.report.document import Plot
from torchwise.report.facts import place
from torchwise.report.plots.drawing import COLORS, INK, MAX_NAME, MUTED, NEUTRAL, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEST_ALTERNATIVE = "best alternative"
MAX_LENGTH = 60
MARKERS = "s^vPXp<>*h8"
"""Shapes distinguish series with the same colour. Pairs of shape and colour repeat only after 55 series or more."""
FIXED_MARKERS = {EAGER: "o", TORCHWISE: "D"}
AROUND, PER_LEGEND_LINE, PER_NAME, PER_MARK = 1.2, 0.2, 0.3, 0.17
"""Inches of height for each of them. Text stays as readable with sixty targets as with one."""
MANY_GROUPS = 8
"""Number of targets from which the axis also has ticks at the top."""
FILE_WIDTH, FILE_DPI = 9.0, 150


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of a picture. Eager and Torchwise have the same fixed ones in every picture.

    The background fills hollow marks.
    """

    ink: str
    muted: str
    background: str
    colors: tuple[str, ...]
    fixed: Mapping[str, str]
    legend_columns: int


ON_PAGE = Palette(INK, MUTED, "none", (COLORS[0], *COLORS[2:]), {EAGER: NEUTRAL, TORCHWISE: COLORS[1]}, 2)
IN_FILE = Palette(
    "#222222",
    "#222222",
    "white",
    ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#B8A000"),
    {EAGER: "#000000", TORCHWISE: "#D55E00"},
    4,
)
"""Okabe & Ito's palette, which the colour-blind can tell apart. Its yellow is darkened, to be seen on white."""


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

    def height(self, legend_columns: int) -> float:
        """Return the height in inches."""
        legend = PER_LEGEND_LINE * -(-len(self.series) // legend_columns)
        return AROUND + legend + sum(PER_NAME + PER_MARK * len(group.marks) for group in self.groups)


def plots(benchmark: Benchmark) -> list[Plot]:
    """Return speed-up over eager, and the share of the roofline if it is known, for a page."""
    speedups, shares = speedup_picture(benchmark), roofline_picture(benchmark)
    found = []
    if speedups.groups:
        caption = (
            "Right of 1× is faster than eager. Bars are 95 % intervals. A hollow mark means that the answers are not "
            "correct. A bar without a mark is inconclusive, as its interval is too wide."
        )
        found.append(_make_plot("speedup", "Speed-up over eager", speedups, caption))
    if shares.groups:
        caption = "The minimum time for the work on this hardware, divided by the measured time. 100 % is the optimum."
        found.append(_make_plot("roofline", "Share of the roofline", shares, caption))
    return found


def write_plots(benchmark: Benchmark, folder: str | Path) -> list[Path]:
    """Write `speedup` and, if the roofline is known, `roofline`, each as .png and .svg. Return the paths.

    Raises:
        InputError: the folder cannot be made or written to.
    """
    pictures = {"speedup": speedup_picture(benchmark), "roofline": roofline_picture(benchmark)}
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [file for name, found in pictures.items() if found.groups for file in _write(found, Path(folder, name))]
    except OSError as error:
        raise InputError(f"plots cannot be written to {folder}: {error.strerror or error}") from None


def speedup_picture(benchmark: Benchmark) -> Picture:
    """Return every timed contender except eager, with a hollow mark if its answers are not correct."""
    return Picture(
        _groups(benchmark, lambda workload: _speedups(scale_of(benchmark, workload))),
        label="speed-up over eager: right of 1× is faster",
        note=f"bars: 95 % interval, hollow: answers not correct, no mark: inconclusive. {place(benchmark.environment)}",
        unit="×",
        line=1.0,
    )


def roofline_picture(benchmark: Benchmark) -> Picture:
    """Return the roofline shares of eager, the best alternative and Torchwise, if correct and in native precision."""
    return Picture(
        _groups(benchmark, lambda workload: _shares(benchmark, workload)),
        label="share of the roofline: minimum possible time over the measured time",
        note=place(benchmark.environment),
        unit=" %",
        line=100.0,
    )


def _groups(benchmark: Benchmark, marks_of: Callable[[WorkloadSpec], list[Mark]]) -> tuple[Group, ...]:
    workloads = benchmark.workloads
    found = [(_name_target(workload, workloads), tuple(marks_of(workload))) for workload in workloads]
    return tuple(Group(name, marks) for name, marks in found if marks)


def _speedups(scale: Scale) -> list[Mark]:
    return [
        Mark(_name_series(one.row), one.speedup.low, one.speedup.mid, one.speedup.high, is_hollow=not one.row.is_right)
        for one in scale.rows
        if one.row.contender != EAGER
    ]


def _shares(benchmark: Benchmark, workload: WorkloadSpec) -> list[Mark]:
    rows = scale_of(benchmark, workload).rows
    right = {one.row.contender: one for one in rows if one.row.is_right and one.row.level in ("native", PERMITTED)}
    others = [one for name, one in right.items() if name not in (EAGER, TORCHWISE) and one.speedup.is_usable]
    best = max(others, key=lambda one: one.speedup.mid, default=None)
    shown: dict[str, ScaledRow | None] = {
        EAGER: right.get(EAGER),
        BEST_ALTERNATIVE: best,
        TORCHWISE: right.get(TORCHWISE),
    }
    shares = {name: one.roofline_share(benchmark.peaks) if one else None for name, one in shown.items()}
    return [Mark(name, 100 * share, 100 * share, 100 * share) for name, share in shares.items() if share]


def _name_series(row: Row) -> str:
    """Return the legend's name of a row. Each lower precision is a separate series."""
    name = show.one_line(row.contender)
    return name if row.precision == "native" else f"{name} in {show.one_line(row.precision)}"


def _name_target(workload: WorkloadSpec, workloads: tuple[WorkloadSpec, ...]) -> str:
    """Return the target without the zoo's prefix, and mode, device and objective if they differ among workloads."""
    words = [show.truncate(workload.target.removeprefix("zoo:"), MAX_LENGTH)]
    for field in ("mode", "device", "objective"):
        if len({getattr(other, field) for other in workloads}) > 1:
            words.append(getattr(workload, field))
    return ", ".join(words)


def _make_plot(key: str, title: str, picture: Picture, caption: str) -> Plot:
    right = [(group.name, mark) for group in picture.groups for mark in group.marks if not mark.is_hollow]
    best = max((pair for pair in right if pair[1].is_figure), key=lambda pair: pair[1].mid, default=None)
    summary = "No answer is correct."
    if best:
        summary = f"The highest is {best[1].series}, at {show.three(best[1].mid)}{picture.unit}, on {best[0]}."
    elif right:
        summary = "Inconclusive: no contender with correct answers has a reliable speed-up."
    height = picture.height(ON_PAGE.legend_columns)
    return Plot(
        key=key,
        title=title,
        summary=summary,
        caption=caption,
        svg=draw(key, summary, height, lambda axes: _paint(axes, picture, ON_PAGE)),
        header=("target", "contender", picture.unit.strip(), "answers"),
        table=tuple(
            (group.name, mark.series, _format_mark(mark, picture.unit), "not right" if mark.is_hollow else "right")
            for group in picture.groups
            for mark in group.marks
        ),
    )


def _format_mark(mark: Mark, unit: str) -> str:
    low, mid, high = show.three(mark.low), show.three(mark.mid), show.three(mark.high)
    if mark.low == mark.high:
        return f"{mid}{unit}"
    return f"{mid}{unit} [{low}, {high}]" if mark.is_figure else f"{low}{unit} to {high}{unit}"


def _write(picture: Picture, path: Path) -> list[Path]:
    """Draw to `path` with .png and with .svg, and return both paths."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: Any = {"font.size": 9, "text.parse_math": False, "svg.hashsalt": "torchwise", "axes.axisbelow": True}
    settings |= {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
    # A name may hold characters that the font does not have.
    with matplotlib.rc_context(settings), warnings.catch_warnings(action="ignore"):
        figure = Figure(figsize=(FILE_WIDTH, picture.height(IN_FILE.legend_columns)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _paint(axes, picture, IN_FILE)
        axes.grid(axis="x", color="#dddddd", linewidth=0.7)
        axes.set_xlabel(f"{picture.label}\n{picture.note}", color=IN_FILE.ink)
        files = [path.with_name(f"{path.name}{suffix}") for suffix in (".png", ".svg")]
        figure.savefig(files[0], dpi=FILE_DPI)
        figure.savefig(files[1], metadata={"Date": None})
    return files


def _paint(axes: Axes, picture: Picture, palette: Palette) -> None:
    """Draw a strip for each target below its name, and a line in it for each mark."""
    styles = {name: _style(name, number, palette) for number, name in enumerate(picture.series)}
    axes.set_xscale("log")
    axes.axvline(picture.line, color=palette.ink, linewidth=1, zorder=1)
    top = 0.0
    for group in picture.groups:
        name, where = show.truncate(group.name, MAX_NAME), axes.get_yaxis_transform()
        axes.text(0, top + PER_NAME * 0.6, name, transform=where, va="center", color=palette.ink, fontsize=9)
        top += PER_NAME
        for mark in group.marks:
            _paint_mark(axes, top + PER_MARK / 2, mark, styles[mark.series], palette.background)
            top += PER_MARK
    axes.set_ylim(top + PER_MARK, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    is_tall = len(picture.groups) > MANY_GROUPS
    axes.tick_params(axis="x", top=is_tall, labeltop=is_tall)
    _scale(axes, picture.unit)
    _add_legend(axes, styles, palette)


def _style(name: str, number: int, palette: Palette) -> dict[str, Any]:
    color = palette.fixed.get(name, palette.colors[number % len(palette.colors)])
    marker = FIXED_MARKERS.get(name, MARKERS[number % len(MARKERS)])
    return {"color": color, "marker": marker, "markersize": 5, "linestyle": "", "zorder": 3}


def _paint_mark(axes: Axes, position: float, mark: Mark, style: dict[str, Any], background: str) -> None:
    """Draw a mark with its interval. A hollow one is filled with the background. An uncertain one has no marker."""
    ends = [[mark.mid - mark.low], [mark.high - mark.mid]]
    hollow = {"markerfacecolor": background} if mark.is_hollow else {}
    hollow |= {} if mark.is_figure else {"marker": ""}
    axes.errorbar([mark.mid], [position], xerr=ends, elinewidth=1.4, **{**style, **hollow})


def _scale(axes: Axes, unit: str) -> None:
    """Put ticks on the logarithmic axis, at fewer multiples of each power of ten the longer it is."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axes.get_xlim()
    steps: Sequence[float] = (1, 1.5, 2, 3, 5) if high / low < 10 else (1, 2, 5) if high / low < 100 else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{unit}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _add_legend(axes: Axes, styles: dict[str, dict[str, Any]], palette: Palette) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=show.truncate(name, 28), **style) for name, style in styles.items()]
    options = {"ncols": palette.legend_columns, "labelcolor": palette.muted, "fontsize": 9}
    axes.figure.legend(handles=handles, loc="outside lower left", **options)
