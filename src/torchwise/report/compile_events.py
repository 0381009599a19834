"""Events of the compiler on a terminal: a summary first, then each source line with its fix."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console

from torchwise.records import format as show
from torchwise.records.compile_events import Break, Compilation, CompileEvents, Recompile, UncompiledPart
from torchwise.report import document as doc
from torchwise.report.terminal import render_terminal

MAX_COUNT = 20
"""Maximum entries shown of each kind. The JSON has all."""
COLUMNS = (
    *doc.text_columns("function"),
    *doc.figure_columns("compilations", "time", "backend", "guards", "cache hits"),
)


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
    """Print what the compiler reported."""
    console.print(render_terminal(events_document(events)))


def events_document(events: CompileEvents) -> doc.Document:
    """Return the report: a summary, graph breaks with their fixes, recompilations, fallbacks, and compile times."""
    blocks: tuple[doc.Block, ...] = (
        doc.Text(sentence(events), tone=doc.Tone.STRONG),
        *_limited_section("Graph breaks", map(_describe_break, events.breaks)),
        *_limited_section("Recompilations", map(_describe_recompile, events.recompiles)),
        *_limited_section("Not compiled", map(_describe_fallback, events.fallbacks)),
        *([doc.Section("Compiled", (_compilation_table(events.compilations),))] if events.compilations else []),
        *(doc.Text(show.one_line(note), "Note: ", doc.Tone.MUTED) for note in events.notes),
    )
    return doc.Document("Compiler", blocks)


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


def _limited_section(title: str, entries: Iterable[list[doc.Block]]) -> Iterator[doc.Section]:
    found = list(entries)
    blocks = [block for entry in found[:MAX_COUNT] for block in entry]
    if len(found) > MAX_COUNT:
        blocks.append(doc.Text(f"and {len(found) - MAX_COUNT} more", tone=doc.Tone.MUTED))
    if blocks:
        yield doc.Section(title, tuple(blocks))


def _describe_break(one: Break) -> list[doc.Block]:
    often = f", {show.pluralize(one.count, 'time')}" if one.count > 1 else ""
    head = f"{_place(one.file, one.line)} in {one.function}: {one.reason} ({one.code or 'no code'}{often})"
    blocks: list[doc.Block] = [doc.Text(head)]
    if one.excerpt:
        blocks.append(doc.Code(one.excerpt, "Source line"))
    if one.fix:
        blocks.append(doc.Text(one.fix.words, "→ "))
        if one.fix.setting:
            blocks.append(doc.Text(f"or {one.fix.setting}: {one.fix.consequence}", "→ ", doc.Tone.MUTED))
    return blocks


def _describe_recompile(one: Recompile) -> list[doc.Block]:
    head = f"{_place(one.file, one.line)} in {one.function}, {show.pluralize(one.count, 'time')}: {one.varies}"
    return [doc.Text(head), doc.Code(f"guard: {one.guard}", "Guard")]


def _describe_fallback(one: UncompiledPart) -> list[doc.Block]:
    place = f"{_place(one.file, one.line)} in {one.function}: " if one.file else ""
    often = f" ({show.pluralize(one.count, 'time')})" if one.count > 1 else ""
    return [doc.Text(f"{place}{one.what}{often}")]


def _compilation_table(compilations: Iterable[Compilation]) -> doc.Table:
    functions: dict[tuple[str, str], _Function] = {}
    for one in compilations:
        functions.setdefault((one.file, one.function), _Function(one.line)).add(one)
    rows = []
    for (file, name), found in sorted(functions.items(), key=lambda item: -item[1].seconds)[:MAX_COUNT]:
        where = f"{_place(file, found.line)} in {name}" if file else show.NONE
        times = (show.seconds(found.seconds), show.seconds(found.backend_s))
        rows.append(doc.Row((where, found.times, *times, found.guards, found.hits)))
    return doc.Table("Compiled", COLUMNS, tuple(rows))


def _place(file: str, line: int) -> str:
    """Return file and line. Files below the current folder get a relative path, which terminals can open."""
    with contextlib.suppress(OSError):  # the folder that the program ran in may be gone
        file = file.removeprefix(os.getcwd() + os.sep)
    return f"{file}:{line}"
