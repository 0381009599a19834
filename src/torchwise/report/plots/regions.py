"""The plot of regions: each operator of a graph as a square, and a box around those that are one function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchwise.records import format as show
from torchwise.records.explanation import Box
from torchwise.report.document import Plot
from torchwise.report.plots.drawing import COLORS, INK, NEUTRAL, add_legend, draw, height, name_strips
from torchwise.report.region_boxes import name_operators, summarize, tell_reasons

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_ROWS = 12
"""Boxes that are drawn. The table has all."""
MAX_SQUARES = 40
"""Squares of a box that are drawn."""
KINDS = {
    "products": ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "convolution", "einsum", "dot", "mv", "addmv"),
    "reductions": (
        *("sum", "mean", "var", "amax", "amin", "max", "min", "prod", "argmax", "argmin", "cumsum", "softmax"),
        *("_softmax", "_log_softmax", "logsumexp", "native_layer_norm", "native_group_norm", "norm", "var_mean"),
    ),
    "lookups": ("embedding", "gather", "index", "index_select", "scatter", "embedding_bag", "select_scatter"),
    "random numbers": ("rand", "randn", "bernoulli", "normal", "uniform", "philox", "rand_like", "randn_like"),
}
OTHERS = "one number at a time"


def regions_plot(graphs: Sequence[Sequence[Box]]) -> Plot | None:
    """Return the plot of the graph with most operators, or None without row programs."""
    if not any(graphs):
        return None
    whole = max(graphs, key=lambda several: sum(len(box.operators) for box in several))
    summary, boxes = summarize(whole), whole[:MAX_ROWS]
    return Plot(
        key="regions",
        title="Regions of row programs",
        summary=summary,
        caption="Each square is an operator, and those in a frame are one function. Boxes run from top to bottom. The "
        "table below tells why each ends where it does.",
        svg=draw("regions", summary, height(len(boxes)) + 0.3, lambda axes: _paint(axes, boxes)),
        header=("operators", "reads", "writes", "why it ends there"),
        table=tuple((name_operators(box), str(box.reads), str(box.writes), tell_reasons(box)) for box in boxes),
    )


def _paint(axes: Axes, boxes: Sequence[Box]) -> None:
    from matplotlib.patches import Rectangle

    colors = dict(zip((*KINDS, OTHERS), COLORS, strict=False))
    drawn: set[str] = set()
    for row, box in enumerate(boxes):
        shown = box.operators[:MAX_SQUARES]
        for place, operator in enumerate(shown):
            kind = kind_of(operator)
            label = kind if kind not in drawn else None
            drawn.add(kind)
            axes.add_patch(Rectangle((place + 0.1, row - 0.12), 0.8, 0.34, color=colors[kind], label=label))
        if box.is_region:
            axes.add_patch(Rectangle((-0.1, row - 0.2), len(shown) + 0.2, 0.5, fill=False, edgecolor=INK, linewidth=1))
        if (left := len(box.operators) - MAX_SQUARES) > 0:
            axes.text(len(shown) + 0.4, row + 0.05, f"+ {left}", va="center", fontsize=9, color=NEUTRAL)
    axes.set_xlim(-0.3, max([12, *(min(len(box.operators), MAX_SQUARES) + 4 for box in boxes)]))
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    names = [f"{number}  {_name(box)}" for number, box in enumerate(boxes, 1)]
    name_strips(axes, names)
    add_legend(axes, columns=3, handlelength=1)


def _name(box: Box) -> str:
    if not box.is_region:
        return f"{box.operators[0]}, alone"
    return f"{show.pluralize(len(box.operators), 'operator')}: {name_operators(box)}"


def kind_of(operator: str) -> str:
    """Return the kind of work of an operator, by its name."""
    return next((kind for kind, names in KINDS.items() if operator in names), OTHERS)
