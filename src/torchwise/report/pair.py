"""A verdict on a pair, for a terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from torchwise.records import CheckName, Outcome
from torchwise.records import format as show
from torchwise.records.pair import PairVerdict
from torchwise.report import document as doc
from torchwise.report.html import render_page
from torchwise.report.terminal import render_terminal

MAX_CASES = 12
DETAIL = 200
ADVICE = {
    CheckName.STRIDES: "Return the outputs in the reference's memory layout, or call .contiguous() on both sides.",
    CheckName.MEMORY: "Write every element of a tensor that torch.empty gives.",
    CheckName.REPEATED_CALLS: "Keep no answer and no input from call to call.",
    CheckName.LATE_WORK: "Wait for other threads and streams before you return.",
    CheckName.RETAINED_OUTPUTS: "Return a new tensor from each call.",
}
"""What usually helps, by the check that failed."""


def describe_verdict(verdict: PairVerdict) -> str:
    """Return the result as one sentence."""
    sides = f"{verdict.candidate} in place of {verdict.reference}"
    if verdict.verdict.outcome is Outcome.PASS:
        return f"Equal: {sides} passed {len(verdict.verdict.checks)} checks on {_count_cases(verdict)}."
    word = "Wrong" if verdict.verdict.outcome is Outcome.FAIL else "Not comparable"
    return f"{word}: {sides}: {show.one_line(verdict.verdict.reason)}."


def _count_cases(verdict: PairVerdict) -> str:
    return show.pluralize(max(len(verdict.cases), 1), "set") + " of inputs"


def pair_document(verdict: PairVerdict) -> doc.Document:
    """Return the report on a pair."""
    outcome = verdict.verdict.outcome
    tone = {Outcome.PASS: doc.Tone.GOOD, Outcome.FAIL: doc.Tone.BAD}.get(outcome, doc.Tone.WARNING)
    checks = tuple(
        doc.Row((str(check.name), str(check.outcome), show.truncate(check.detail, DETAIL)))
        for check in verdict.verdict.checks
    )
    cases = tuple(
        doc.Row((case.name, case.inputs, str(case.outcome), _figure(case.error), _figure(case.floor)))
        for case in verdict.cases
    )
    columns = (*doc.text_columns("case", "inputs", "result"), *doc.figure_columns("error", "reference's own"))
    blocks = (
        doc.Text(describe_verdict(verdict), tone=tone),
        *_failing(verdict),
        *_timing(verdict),
        *(doc.Text(show.one_line(note), "note: ") for note in verdict.notes),
        doc.Table("Checks", doc.text_columns("check", "result", "figures"), checks),
        doc.Table("Cases", columns, cases, limit=MAX_CASES, more="further cases"),
        doc.Text(f"{show.seconds(verdict.seconds)} in total", tone=doc.Tone.MUTED),
    )
    return doc.Document("Verification", blocks, subtitles=(f"{verdict.candidate} against {verdict.reference}",))


def _figure(value: float | None) -> str:
    return show.NONE if value is None else f"{value:.2g}"


def _failing(verdict: PairVerdict) -> Iterator[doc.Block]:
    if found := verdict.failing:
        yield doc.Text(
            f"{found.inputs}: {show.one_line(show.truncate(found.detail, DETAIL))}", "Smallest inputs that fail: "
        )
        if found.repro:
            word = "confirmed" if found.confirmed else "NOT confirmed: run separately, it shows no difference"
            yield doc.Text(f"python {found.repro}  (reproducer {word})")
    failed = [check.name for check in verdict.verdict.checks if check.outcome is Outcome.FAIL]
    if failed and (advice := ADVICE.get(failed[0])):
        yield doc.Text(advice, "Fix: ")


def _timing(verdict: PairVerdict) -> Iterator[doc.Block]:
    if measurement := verdict.measurement:
        pace = show.speedup(measurement.speedup)
        times = f"{show.seconds(measurement.candidate_time.mid)} against {show.seconds(measurement.baseline_time.mid)}"
        yield doc.Text(f"{pace} the reference's speed: {times} per call")
        yield from (doc.Text(caveat, "note: ") for caveat in measurement.caveats[:1])


def render_pair(verdict: PairVerdict) -> RenderableType:
    """Return a verdict for a terminal."""
    return render_terminal(pair_document(verdict))


def render_pair_html(verdict: PairVerdict) -> str:
    """Return a verdict as a self-contained page."""
    return render_page(pair_document(verdict))
