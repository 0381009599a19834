"""The report on each kind of result, as a notebook shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torchwise.plan import Plan
from torchwise.records import Decision, Interval, Study
from torchwise.records import format as show
from torchwise.records.analysis import Analysis
from torchwise.records.benchmark import Benchmark
from torchwise.records.bisection import Bisection
from torchwise.records.comparison import Comparison
from torchwise.records.compile_events import CompileEvents
from torchwise.records.explanation import Explanation
from torchwise.records.recording import Recording
from torchwise.records.scale import BatchFit
from torchwise.report import document as doc
from torchwise.report.analysis import render_analysis_html
from torchwise.report.bench import comparison_document, render_bench_html
from torchwise.report.bisection import bisection_document
from torchwise.report.compile_events import events_document
from torchwise.report.explanation import render_explanation_html
from torchwise.report.html import render_page
from torchwise.report.recording import recording_document
from torchwise.report.study import decision_document, render_html

SIZES = (*doc.figure_columns("batch", "samples a second", "peak memory"), *doc.text_columns("problem"))
PLAIN = (str, int, float, bool, Plan, Interval)
"""Kinds of values that are shown as facts. The others are parts with views of their own."""


def render_view(result: Any) -> str:
    """Return a result as a page: its report, or else its plain values as facts."""
    for kind, render in PAGES.items():
        if isinstance(result, kind):
            return render(result)
    make = next((make for kind, make in DOCUMENTS.items() if isinstance(result, kind)), facts_document)
    return render_page(make(result))


def facts_document(result: Any) -> doc.Document:
    """Return the plain values of a record. It is titled by the record's own line."""
    return doc.Document(type(result).__name__, (doc.Text(repr(result)), doc.Facts(tuple(_list_facts(result)))))


def _list_facts(result: Any) -> Iterator[doc.Fact]:
    for one in fields(result) if is_dataclass(result) else ():
        value = getattr(result, one.name)
        if isinstance(value, Mapping):
            value = ", ".join(f"{key}: {count}" for key, count in value.items())
        if isinstance(value, tuple) and all(isinstance(item, PLAIN) for item in value):
            value = ", ".join(map(str, value))
        if isinstance(value, PLAIN) and value != "":
            yield one.name.replace("_", " "), show.one_line(show.three(value) if type(value) is float else str(value))


def batch_document(fit: BatchFit) -> doc.Document:
    """Return the report on a search for a batch size."""
    rows = tuple(
        doc.Row(
            (one.size, one.samples_per_s and show.count(one.samples_per_s), show.size(one.peak_memory), one.problem)
        )
        for one in fit.tried
    )
    return doc.Document(fit.target, (doc.Text(repr(fit)), doc.Table("Batch sizes", SIZES, rows)))


PAGES: dict[type, Callable[[Any], str]] = {
    Study: render_html,
    Analysis: render_analysis_html,
    Benchmark: render_bench_html,
    Explanation: render_explanation_html,
}
"""Reports with plots."""
DOCUMENTS: dict[type, Callable[[Any], doc.Document]] = {
    BatchFit: batch_document,
    Bisection: bisection_document,
    CompileEvents: events_document,
    Comparison: comparison_document,
    Decision: decision_document,
    Recording: recording_document,
}
