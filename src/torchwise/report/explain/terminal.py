"""An explanation on a terminal."""

from __future__ import annotations

from functools import partial

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchwise.records.explanation import Explanation, Finding, Kernel
from torchwise.report import format as show
from torchwise.report import layout
from torchwise.report.explain import text as explain_text
from torchwise.report.explain.text import (
    NOTHING,
    capturable,
    cells,
    describe_saving,
    execution,
    headline,
    next_steps,
    order,
    place,
)
from torchwise.report.terminal import commands

MAX_KERNELS = 12
MAX_FILES = 2

_indent = partial(layout.paragraph, indent=3)


def render_explanation(explanation: Explanation, store: str | None = None) -> RenderableType:
    """Return an explanation: the call, the findings, the stages, the kernels, and the next commands."""
    explanation = explanation.make_consistent()
    trust = explanation.trust
    parts: list[RenderableType] = [
        *([layout.trust_line(trust)] if trust else []),
        Text(show.one_line(headline(explanation)), style="bold"),
        Text(place(explanation), style="dim"),
        _title(order(explanation)),
        *([_render_finding(number, one) for number, one in enumerate(explanation.findings, 1)] or [_indent(NOTHING)]),
        _title("Stages"),
        _stages(explanation),
        _title("Kernels of one call"),
        *_kernels(explanation.kernels),
        _indent(execution(explanation)),
        _indent(capturable(explanation)),
    ]
    if explanation.notes:
        parts += [_title("Notes"), *(_indent(show.plain(note)) for note in explanation.notes)]
    return Group(*parts, _title("Next"), *commands(next_steps(explanation, store), indent=5))


def _render_finding(number: int, one: Finding) -> RenderableType:
    style = "green" if explain_text.gains(one.saving) else "yellow"
    lines: list[RenderableType] = [
        Text.assemble((f"{number}. {show.plain(one.title)}", "bold"), "  ", (describe_saving(one.saving), style))
    ]
    for spot in one.places:
        lines.append(_indent(show.one_line(str(spot)), style="cyan"))
        if spot.excerpt:
            lines.append(_indent(show.truncate(spot.excerpt, 200), indent=4, style="dim"))
    lines.append(_indent(show.plain(one.cause)))
    lines.append(_indent(show.plain(one.fix), "Fix: "))
    lines += [_indent(show.plain(explain_text.describe_fix(attempt)), "Tried: ", "dim") for attempt in one.tried]
    if one.saving:
        lines.append(_indent(show.plain(one.saving.how), "Saving: ", "dim"))
    return Padding(Group(*lines), (0, 0, 1, 0))


def _stages(explanation: Explanation) -> RenderableType:
    table = _table(("stage", False), ("time", True), ("in", False), ("out", False))
    for stage in explanation.stages:
        out = "; ".join((stage.came_out, *_files(stage.artifacts)))
        table.add_row(*map(Text, (stage.name, show.seconds(stage.seconds), stage.went_in, out)))
    return table


def _files(names: tuple[str, ...]) -> list[str]:
    more = f" and {len(names) - MAX_FILES} more" if len(names) > MAX_FILES else ""
    return [", ".join(names[:MAX_FILES]) + more] if names else []


def _kernels(kernels: tuple[Kernel, ...]) -> list[RenderableType]:
    table = _table(
        ("kernel", False), ("calls", True), ("time", True), ("bytes", True), ("FLOPs", True), ("roofline", True)
    )
    for kernel in kernels[:MAX_KERNELS]:
        table.add_row(*map(Text, cells(kernel)))
    left = kernels[MAX_KERNELS:]
    total = sum(kernel.seconds for kernel in left)
    return [table, *([_indent(f"and {len(left):,} more, {show.seconds(total)} together")] if left else [])]


def _table(*columns: tuple[str, bool]) -> Table:
    table = layout.table()
    for name, is_figure in columns:
        table.add_column(name, justify="right" if is_figure else "left", overflow="fold")
    return table


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")
