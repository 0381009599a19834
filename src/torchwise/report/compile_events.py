"""Events of the compiler on a terminal: a summary first, then each source line with its fix."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchwise.records.compile_events import Break, Compilation, CompileEvents, Recompile, UncompiledPart
from torchwise.report import format as show

MAX_COUNT = 20
"""Maximum entries shown of each kind. The JSON has all."""


@dataclass(slots=True)
class _Function:
    """All compilations of one function, with its parts between graph breaks."""

    line: int
    times: int = 0
    seconds: float = 0.0
    backend_s: float = 0.0
    guards: int = 0
    hits: int = 0

    def add(self, one: Compilation) -> None:
        """Count one more compilation."""
        self.line = min(self.line, one.line)
        self.times += 1
        self.seconds += one.seconds
        self.backend_s += one.phases.get("aot_autograd", 0.0)
        self.guards = max(self.guards, one.guards)
        self.hits += one.cache_hits


def print_compile_events(events: CompileEvents, console: Console) -> None:
    """Print a summary, graph breaks with their fixes, recompilations, fallbacks, and compile times."""
    parts: list[RenderableType] = [Text(sentence(events), style="bold")]
    parts += _section("Graph breaks", [_break(one) for one in events.breaks])
    parts += _section("Recompilations", [_recompile(one) for one in events.recompiles])
    parts += _section("Not compiled", [_render_part(one) for one in events.fallbacks])
    if events.compilations:
        parts += [Text("Compiled", style="bold"), _compilation_table(events.compilations)]
    parts += [Text(f"Note: {show.one_line(note)}", style="dim") for note in events.notes]
    console.print(Group(*parts))


def sentence(events: CompileEvents) -> str:
    """Summarize the events in one sentence."""
    if not events.compilations and not events.breaks:
        return f"Torchwise watched PyTorch's compiler for {show.seconds(events.seconds)}: nothing was compiled."
    recompiled = sum(one.count for one in events.recompiles)
    return (
        f"Torchwise watched PyTorch's compiler for {show.seconds(events.seconds)}: "
        f"{show.pluralize(len(events.compilations), 'compilation')} in {show.seconds(events.compile_s)} "
        f"({show.seconds(events.trace_s)} of it for recording these events), "
        f"{show.pluralize(len(events.breaks), 'graph break')}, "
        f"{show.pluralize(recompiled, 'recompilation')}, {show.pluralize(len(events.fallbacks), 'fallback')} to eager."
    )


def _section(title: str, entries: list[RenderableType]) -> Iterable[RenderableType]:
    if not entries:
        return
    yield Text(title, style="bold")
    yield from (Padding(entry, (0, 0, 0, 2)) for entry in entries[:MAX_COUNT])
    if len(entries) > MAX_COUNT:
        yield Text(f"  and {len(entries) - MAX_COUNT} more", style="dim")


def _break(one: Break) -> RenderableType:
    often = f", {show.pluralize(one.count, 'time')}" if one.count > 1 else ""
    head = f"{_place(one.file, one.line)} in {one.function}: {one.reason} ({one.code or 'no code'}{often})"
    parts = [_text(head)]
    if one.excerpt:
        parts.append(_text(f"    {one.excerpt}", style="cyan"))
    if one.fix:
        parts.append(_text(f"→ {one.fix.words}"))
        if one.fix.setting:
            parts.append(_text(f"→ or {one.fix.setting}: {one.fix.consequence}", style="dim"))
    return Group(*parts)


def _recompile(one: Recompile) -> RenderableType:
    head = f"{_place(one.file, one.line)} in {one.function}, {show.pluralize(one.count, 'time')}: {one.varies}"
    return Group(_text(head), _text(f"    guard: {one.guard}", style="dim"))


def _render_part(one: UncompiledPart) -> RenderableType:
    place = f"{_place(one.file, one.line)} in {one.function}: " if one.file else ""
    often = f" ({show.pluralize(one.count, 'time')})" if one.count > 1 else ""
    return _text(f"{place}{one.what}{often}")


def _compilation_table(compilations: Iterable[Compilation]) -> Table:
    functions: dict[tuple[str, str], _Function] = {}
    for one in compilations:
        functions.setdefault((one.file, one.function), _Function(one.line)).add(one)
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    table.add_column("function", overflow="fold")
    for title in ("compilations", "time", "backend", "guards", "cache hits"):
        table.add_column(title, justify="right", no_wrap=True)
    for (file, name), all_of in sorted(functions.items(), key=lambda item: -item[1].seconds)[:MAX_COUNT]:
        where = f"{_place(file, all_of.line)} in {name}" if file else show.NONE
        took, backend = show.seconds(all_of.seconds), show.seconds(all_of.backend_s)
        table.add_row(show.one_line(where), str(all_of.times), took, backend, str(all_of.guards), str(all_of.hits))
    return table


def _place(file: str, line: int) -> str:
    """Return file and line. Files below the current folder get a relative path, which terminals can open."""
    with contextlib.suppress(OSError):  # the folder that the program ran in may be gone
        here = os.getcwd() + os.sep
        file = file.removeprefix(here)
    return f"{file}:{line}"


def _text(words: str, style: str = "") -> Text:
    return Text(show.plain(words), style=style)
