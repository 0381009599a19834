"""An explanation: the largest potential saving first, then stages, kernels, and the next commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType

from torchwise.records import format as show
from torchwise.records.answer import Answer
from torchwise.records.explanation import Explanation, Finding, Kernel, SourceLocation, Stage
from torchwise.records.files import write_atomically, write_json
from torchwise.report import explanation_text as words
from torchwise.report.commands import command_line, is_live
from torchwise.report.document import (
    Block,
    Code,
    Column,
    Commands,
    Document,
    Entry,
    Medium,
    Only,
    Panel,
    Plot,
    Row,
    Section,
    Step,
    Table,
    Text,
    Tone,
    list_section,
    plot_section,
    trust_text,
)
from torchwise.report.facts import environment_section, name_report
from torchwise.report.render.html import Theme, render_page, render_part
from torchwise.report.render.terminal import render_terminal

MAX_KERNELS = 12
MAX_FILES = 2
LEGEND = (
    "A measured saving was timed with and without the fix in one process. An estimated saving was not timed, and is an "
    "upper bound."
)
STAGES = (
    Column("stage", is_wrapped=True),
    Column("time", is_figure=True),
    Column("in", is_wrapped=True),
    Column("out", is_wrapped=True),
)
KERNELS = (
    Column("kernel", is_wrapped=True),
    *(Column(name, is_figure=True) for name in ("calls", "time", "bytes", "FLOPs", "roofline")),
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
    """Write a page, or schema `torchwise.explanation/1`, each whole or not at all. `store` is as in `next_steps`.

    Raises:
        StorageError: a file cannot be written.
    """
    if html:
        write_atomically(render_explanation_html(explanation, store), html)
    if json:
        write_json(explanation, json)


def _draw_plots(explanation: Explanation) -> list[Plot]:
    from torchwise.report.plots.explanation import plots

    return plots(explanation.make_consistent())


def _explanation_document(explanation: Explanation, store: str | None = None, plots: Sequence[Plot] = ()) -> Document:
    explanation = explanation.make_consistent()
    trust, place = explanation.trust, words.place(explanation)
    findings = [_describe_finding(number, one) for number, one in enumerate(explanation.findings, 1)]
    headline = Panel("The call", words.headline(explanation), tone=Tone.GOOD if findings else Tone.WARNING)
    sentences = (words.execution(explanation), words.capturable(explanation))
    return Document(
        title=explanation.workload.target,
        brand=name_report("explanation", explanation.created_at),
        subtitles=(place,),
        blocks=(
            *([trust_text(trust)] if trust else []),
            headline,
            Only(Medium.TERMINAL, (Text(place, tone=Tone.MUTED),)),
            Section(words.order(explanation), tuple(findings) or (Text(words.NOTHING),)),
            *plot_section(plots),
            Section("Stages", (_stage_table(explanation.stages), *_name_artifacts(explanation))),
            Section("Kernels of one call", (_kernel_table(explanation.kernels), *map(Text, sentences))),
            *list_section("Notes", explanation.notes),
            Section("Next", (Commands(tuple(next_steps(explanation, store))),)),
            Only(Medium.PAGE, (environment_section(explanation.environment),)),
        ),
        footer=f"The explanation took {show.seconds(explanation.seconds)}. {LEGEND}",
    )


def _describe_finding(number: int, one: Finding) -> Entry:
    tone = Tone.GOOD if words.gains(one.saving) else Tone.WARNING
    remark = Text(words.describe_saving(one.saving), tone=tone)
    return Entry(f"{number}. {one.title}", remark, tuple(_finding_blocks(one)), f"finding-{number}")


def _finding_blocks(one: Finding) -> Iterator[Block]:
    for spot in one.places:
        yield Text(show.one_line(str(spot)), link=_address(spot))
        if spot.excerpt:
            yield Code(show.one_line(spot.excerpt), "Source line")
    yield Text(one.cause)
    yield Text(one.fix, "Fix: ")
    if one.plan:
        yield Only(Medium.PAGE, (Code(one.plan.to_json(), "Plan with this fix"),))
    yield from (Text(words.describe_fix(attempt), "Tried: ", Tone.MUTED) for attempt in one.tried)
    if one.saving:
        yield Text(one.saving.how, "Saving: ", Tone.MUTED)


def _address(spot: SourceLocation) -> str:
    """Return the URL of a place. A browser opens the file. Editors also go to the line, which they read after "#"."""
    line = f"#L{spot.line}" if spot.line else ""
    return f"{Path(spot.file).as_uri()}{line}" if Path(spot.file).is_absolute() else ""


def _stage_table(stages: Sequence[Stage]) -> Table:
    rows = tuple(
        Row((stage.name, show.seconds(stage.seconds), stage.went_in, "; ".join(_describe_output(stage))))
        for stage in stages
    )
    return Table("The six stages", STAGES, rows)


def _describe_output(stage: Stage) -> Iterator[str]:
    yield stage.came_out
    if names := stage.artifacts:
        more = f" and {len(names) - MAX_FILES} more" if len(names) > MAX_FILES else ""
        yield ", ".join(names[:MAX_FILES]) + more


def _name_artifacts(explanation: Explanation) -> Iterator[Block]:
    names = [name for stage in explanation.stages for name in stage.artifacts]
    if explanation.folder and names:
        sentence = f"Artifacts are in {explanation.folder}: {', '.join(names)}."
        yield Only(Medium.PAGE, (Text(sentence, tone=Tone.MUTED),))


def _kernel_table(kernels: Sequence[Kernel]) -> Table:
    left = kernels[MAX_KERNELS:]
    more = f"and {len(left):,} more, {show.seconds(sum(kernel.seconds for kernel in left))} together"
    rows = tuple(map(Row, map(_kernel_cells, kernels)))
    return Table("Kernels of one call", KERNELS, rows, limit=MAX_KERNELS, more=more)


def _kernel_cells(kernel: Kernel) -> tuple[str, ...]:
    return (
        show.one_line(kernel.name),
        show.three(kernel.calls),
        show.seconds(kernel.seconds),
        show.size(kernel.nbytes),
        show.NONE if kernel.flops is None else f"{show.three(kernel.flops / 1e6)} M" if kernel.flops else "0",
        "unknown" if kernel.share is None else show.percent(kernel.share),
    )


def next_steps(explanation: Explanation, store: str | None = None) -> list[Step]:
    """Return the next commands, the most useful first. They use `store` if one was named."""
    store_option = () if store is None else ("--store", store)
    spec = explanation.workload
    if is_live(spec):
        return [Step("torchwise.tune(model, inputs)", "verifies and times the proposed plans, and more")]
    plans = [f.plan for f in explanation.findings if f.plan is not None and not f.plan.is_eager and _pays(f)]
    first = [
        Step(
            command_line("tune", spec, "--plan", p.to_json(), *store_option),
            "verifies the fix with the largest potential saving",
        )
        for p in plans[:1]
    ]
    return [
        *first,
        Step(command_line("tune", spec, *store_option), "tries all plans that may pay back, and chooses one"),
    ]


def _pays(finding: Finding) -> bool:
    return finding.saving is not None and finding.saving.answer is Answer.YES
