"""An explanation: the largest potential saving first, then stages, kernels, and the next commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType

from torchwise.records import format as show
from torchwise.records.answer import Answer, exceeds
from torchwise.records.explanation import (
    AutotunedOperator,
    Explanation,
    Finding,
    FixTrial,
    Kernel,
    SourceLocation,
    Stage,
)
from torchwise.records.files import write_atomically, write_json
from torchwise.records.saving import UNMEASURED, describe_saving
from torchwise.report import document as doc
from torchwise.report.facts import command_line, environment_section, is_live, name_report, place, when
from torchwise.report.html import Theme, render_page, render_part
from torchwise.report.region_boxes import list_sections
from torchwise.report.terminal import render_terminal

MAX_KERNELS = 12
MAX_FILES = 2
MAX_CANDIDATES = 5
"""Candidates that are shown for one operator. The record has all."""
MAX_EXCERPT = 200
"""Characters of a line of source: generated code may have lines of any length."""
NOTHING = "No finding has a relevant potential saving."
LEGEND = (
    "A measured saving was timed with and without the fix in one process. An estimated saving was not timed, and is an "
    "upper bound."
)
STAGES = (*doc.text_columns("stage"), *doc.figure_columns("time"), *doc.text_columns("in", "out"))
CANDIDATES = (*doc.text_columns("operator", "candidate"), *doc.figure_columns("time", "to the first"))
KERNELS = (
    doc.Column("#", is_figure=True, medium=doc.Medium.PAGE),  # the numbers of the roofline's points
    *doc.text_columns("kernel"),
    *doc.figure_columns("calls", "time", "bytes", "FLOPs", "roofline"),
)


def render_explanation(explanation: Explanation, store: str | None = None) -> RenderableType:
    """Return an explanation for a terminal: the call, the findings, the stages, the kernels, and the next commands."""
    return render_terminal(_explanation_document(explanation, store))


def render_explanation_html(explanation: Explanation, store: str | None = None) -> str:
    """Return an explanation as a self-contained page. The same explanation always gives the same page."""
    return render_page(_explanation_document(explanation, store, _draw_plots(explanation)))


def render_explanation_part(explanation: Explanation, theme: Theme) -> str:
    """Return an explanation as a part of a page. See `render_part`."""
    return render_part(_explanation_document(explanation, plots=_draw_plots(explanation)), theme)


def write_explanation(
    explanation: Explanation, *, html: Path | None = None, json: Path | None = None, store: str | None = None
) -> None:
    """Write a page, or schema `torchwise.explanation/1`, each whole or not at all. `store` is as in `next_steps`."""
    if html:
        write_atomically(render_explanation_html(explanation, store), html)
    if json:
        write_json(explanation, json)


def _draw_plots(explanation: Explanation) -> list[doc.Plot]:
    from torchwise.report.plots.explanation import plots

    return plots(explanation.make_consistent())


def _explanation_document(
    explanation: Explanation, store: str | None = None, plots: Sequence[doc.Plot] = ()
) -> doc.Document:
    explanation = explanation.make_consistent()
    trust, scope = explanation.trust, describe_run(explanation)
    findings = [_describe_finding(number, one) for number, one in enumerate(explanation.findings, 1)]
    is_faster = exceeds(explanation.measurement.speedup)
    panel = doc.Panel("The call", describe_call(explanation), tone=doc.answer_tone(is_faster))
    sentences = (describe_execution(explanation), describe_capture(explanation))
    return doc.Document(
        title=explanation.workload.target,
        brand=name_report("explanation", explanation.created_at),
        subtitles=(scope,),
        blocks=(
            *([doc.trust_text(trust)] if trust else []),
            panel,
            doc.Only(doc.Medium.TERMINAL, (doc.Text(scope, tone=doc.Tone.MUTED),)),
            doc.Section(describe_order(explanation), tuple(findings) or (doc.Text(NOTHING),)),
            *doc.plot_section(plots),
            doc.Section("Stages", (_stage_table(explanation.stages), *_name_artifacts(explanation))),
            doc.Section("Kernels of one call", (_kernel_table(explanation.kernels), *map(doc.Text, sentences))),
            *list_sections(explanation.regions),
            *_autotuned_section(explanation.autotuned),
            *doc.list_section("Notes", explanation.notes),
            doc.Section("Next", (doc.Commands(tuple(next_steps(explanation, store))),)),
            doc.Only(doc.Medium.PAGE, (environment_section(explanation.environment),)),
        ),
        footer=f"The explanation took {show.seconds(explanation.seconds)}. {LEGEND}",
    )


def _describe_finding(number: int, one: Finding) -> doc.Entry:
    tone = doc.Tone.GOOD if one.saving and one.saving.is_gain else doc.Tone.WARNING
    remark = doc.Text(describe_saving(one.saving), tone=tone)
    return doc.Entry(f"{number}. {one.title}", remark, tuple(_finding_blocks(one)), f"finding-{number}")


def _finding_blocks(one: Finding) -> Iterator[doc.Block]:
    for spot in one.places:
        yield doc.Text(show.one_line(str(spot)), link=_address(spot))
        if spot.excerpt:
            yield doc.Code(show.truncate(spot.excerpt, MAX_EXCERPT), "Source line")
    yield doc.Text(one.cause)
    yield doc.Text(one.fix, "Fix: ")
    if one.plan:
        yield doc.Only(doc.Medium.PAGE, (doc.Code(one.plan.to_json(), "Plan with this fix"),))
    yield from (doc.Text(describe_fix(attempt), "Tried: ", doc.Tone.MUTED) for attempt in one.tried)
    if one.saving:
        yield doc.Text(one.saving.how, "Saving: ", doc.Tone.MUTED)


def _address(spot: SourceLocation) -> str:
    """Return the URL of a place. A browser opens the file. Editors also go to the line, which they read after "#"."""
    line = f"#L{spot.line}" if spot.line else ""
    return f"{Path(spot.file).as_uri()}{line}" if Path(spot.file).is_absolute() else ""


def _stage_table(stages: Sequence[Stage]) -> doc.Table:
    rows = tuple(
        doc.Row((stage.name, show.seconds(stage.seconds), stage.went_in, "; ".join(_describe_output(stage))))
        for stage in stages
    )
    return doc.Table("The six stages", STAGES, rows)


def _describe_output(stage: Stage) -> Iterator[str]:
    yield stage.came_out
    if names := stage.artifacts:
        more = f" and {len(names) - MAX_FILES} more" if len(names) > MAX_FILES else ""
        yield ", ".join(names[:MAX_FILES]) + more


def _name_artifacts(explanation: Explanation) -> Iterator[doc.Block]:
    names = [name for stage in explanation.stages for name in stage.artifacts]
    if explanation.folder and names:
        sentence = f"Artifacts are in {explanation.folder}: {', '.join(names)}."
        yield doc.Only(doc.Medium.PAGE, (doc.Text(sentence, tone=doc.Tone.MUTED),))


def _kernel_table(kernels: Sequence[Kernel]) -> doc.Table:
    left = kernels[MAX_KERNELS:]
    more = f"and {len(left):,} more, {show.seconds(sum(kernel.seconds for kernel in left))} together"
    rows = tuple(doc.Row(_kernel_cells(number, kernel)) for number, kernel in enumerate(kernels, 1))
    return doc.Table("Kernels of one call", KERNELS, rows, limit=MAX_KERNELS, more=more)


def _kernel_cells(number: int, kernel: Kernel) -> tuple[str, ...]:
    return (
        str(number),
        show.one_line(kernel.name),
        show.three(kernel.calls),
        show.seconds(kernel.seconds),
        show.size(kernel.nbytes),
        show.NONE if kernel.flops is None else f"{show.three(kernel.flops / 1e6)} M" if kernel.flops else "0",
        "unknown" if kernel.share is None else show.percent(kernel.share),
    )


def _autotuned_section(autotuned: Sequence[AutotunedOperator]) -> tuple[doc.Section, ...]:
    """Return a table of the candidates that the compiler timed, or nothing if it timed none."""
    rows = [
        doc.Row((f"{one.operator}({', '.join(one.inputs)})" if not place else "", name, time, ratio))
        for one in autotuned
        for place, (name, time, ratio) in enumerate(_candidate_cells(one))
    ]
    if not rows:
        return ()
    table = doc.Table("Candidates of autotuning", CANDIDATES, tuple(rows))
    told = "The compiler timed these by itself, and took the first of each. Their times are not on the call's scale."
    return (doc.Section("Candidates of autotuning", (table, doc.Text(told, tone=doc.Tone.MUTED))),)


def _candidate_cells(one: AutotunedOperator) -> Iterator[tuple[str, str, str]]:
    fastest = one.candidates[0].seconds if one.candidates else None
    for candidate in one.candidates[:MAX_CANDIDATES]:
        if candidate.seconds is None:
            yield show.one_line(candidate.name), "failed", show.NONE
        else:
            ratio = f"{candidate.seconds / fastest:.2f}×" if fastest else show.NONE
            yield show.one_line(candidate.name), show.seconds(candidate.seconds), ratio
    if (left := len(one.candidates) - MAX_CANDIDATES) > 0:
        yield f"and {left} more", show.NONE, show.NONE


def describe_call(explanation: Explanation) -> str:
    """Return the plan, the time of a call, and its comparison with eager."""
    name = "torch.compile" if explanation.plan is None else str(explanation.plan)
    call, speedup = explanation.execution.call_s, explanation.measurement.speedup
    return (
        f"{explanation.workload.target} with {name}: {show.time(call)} per call, {show.speedup(speedup)} eager's speed"
    )


def describe_order(explanation: Explanation) -> str:
    """Return the heading over the findings, which names their order."""
    return (
        "Findings, the largest potential saving first" if explanation.is_ranked else "Findings, not ordered by saving"
    )


def describe_run(explanation: Explanation) -> str:
    """Return machine, date and duration of the explanation, in a line."""
    took = f"explained in {show.seconds(explanation.seconds)}"
    return place(explanation.environment, when(explanation.created_at), took)


def describe_fix(attempt: FixTrial) -> str:
    """Return the result of an attempted fix, such as "dynamic=True: compiled 9 times, …; it does not help"."""
    words = f"{attempt.fix}: {attempt.seen}"
    if attempt.saving and attempt.saving.answer is Answer.INCONCLUSIVE and not attempt.helps:
        return f"{words}; its saving {UNMEASURED}"
    if attempt.saving and (attempt.helps or attempt.saving.answer is not Answer.YES):
        words += f"; it {describe_saving(attempt.saving)}"
    return words if attempt.helps else f"{words}; it does not help"


def describe_execution(explanation: Explanation) -> str:
    """Return the shares of kernels, host and guards in a call's time, as text."""
    timed = explanation.execution
    words = f"Kernels run for {show.seconds(timed.busy_s)} of the {show.seconds(timed.call_s.mid)} of a call, "
    words += f"and only the host works for the remaining {show.percent(timed.host_share)}."
    if timed.guards:
        words += f" {show.pluralize(timed.guards, 'guard')} take about {show.seconds(timed.guards_s)}."
    if timed.is_rough:
        words += (
            f" Under the profiler the call took {show.ratio(timed.inflation)} its normal time. So times of kernels and "
            "guards are scaled to the timed call, and only rough."
        )
    return words


def describe_capture(explanation: Explanation) -> str:
    """Say whether the call can be captured as one CUDA graph, and why not."""
    found = explanation.capturable
    answer = {True: "can be captured", False: "cannot be captured", None: "was not captured"}[found.answer]
    reasons = f": {'; '.join(found.reasons)}" if found.reasons else ""
    return show.one_line(f"The call {answer} as one CUDA graph{reasons}.")


def next_steps(explanation: Explanation, store: str | None = None) -> list[doc.Step]:
    """Return the next commands, the most useful first. They use `store` if one was named."""
    spec = explanation.workload
    if is_live(spec):
        return [doc.Step("torchwise.tune(model, inputs)", "verifies and times the proposed plans, and more")]
    plans = [f.plan for f in explanation.findings if f.plan is not None and not f.plan.is_eager and _pays(f)]
    first = [
        doc.Step(
            command_line("tune", spec, "--plan", p.to_json(), store=store),
            "verifies the fix with the largest potential saving",
        )
        for p in plans[:1]
    ]
    return [
        *first,
        doc.Step(command_line("tune", spec, store=store), "tries all plans that may pay back, and chooses one"),
    ]


def _pays(finding: Finding) -> bool:
    return finding.saving is not None and finding.saving.answer is Answer.YES
