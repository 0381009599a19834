"""A study: the decision first, then the evidence, then the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from torchwise.plan import Numerics, Trait
from torchwise.records import Decision, Outcome, Study, StudyState
from torchwise.records import format as show
from torchwise.records.candidates import Row as Candidate
from torchwise.records.candidates import rows
from torchwise.records.reasons import format_saving, workload_of
from torchwise.report.commands import command_line, is_live
from torchwise.report.document import (
    Block,
    Cell,
    Column,
    Columns,
    Commands,
    Document,
    Fact,
    Facts,
    Medium,
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
from torchwise.report.facts import (
    break_even,
    describe_request,
    describe_scope,
    drop_empty,
    environment_section,
    format_time_by_kind,
    hot_and_cold,
    name_report,
    throughput,
)
from torchwise.report.render.html import Theme, render_page, render_part
from torchwise.report.render.terminal import render_terminal
from torchwise.report.trial_entries import trial_entries

MAX_EXCLUDED = 6
WIDE, MEDIUM = 130, 80
"""Widths of a terminal from which the table has the reasons, and from which it has everything except the memory."""
COLUMNS = (
    Column("#", is_figure=True, least_width=MEDIUM, medium=Medium.TERMINAL),
    Column("plan", is_wrapped=True),
    Column("speed-up", is_figure=True, title="speed-up (95 %)"),
    Column("per call", is_figure=True, least_width=MEDIUM),
    Column("compile", is_figure=True, least_width=MEDIUM),
    Column("warm", is_figure=True, least_width=WIDE),
    Column("peak memory", is_figure=True, least_width=WIDE),
    Column("answer"),
    Column("why", is_wrapped=True, least_width=WIDE),
)
STANDINGS = {"decided": Tone.GOOD, "baseline": Tone.STRONG, "verified": Tone.PLAIN, "ineligible": Tone.MUTED}
ANSWERS = {Outcome.PASS: Tone.GOOD, Outcome.FAIL: Tone.BAD, Outcome.NOT_COMPARABLE: Tone.WARNING}


def render_study(study: Study, name: str | None = None, store: str | None = None) -> RenderableType:
    """Return a study for a terminal: decision, candidates with reasons, untried choices, notes, and the next commands.

    Args:
        study: the results.
        name: name of the study in the next commands. See `next_steps`.
        store: location of the study's store in those commands.
    """
    return render_terminal(study_document(study, name, store))


def render_decision(decision: Decision) -> RenderableType:
    """Return a decision for a terminal: its reason, its figures, and its target and machine."""
    return render_terminal(Document("", (_decision_panel(decision, ()),)))


def render_html(study: Study, name: str | None = None, store: str | None = None) -> str:
    """Return a study as a page. The same study always gives the same page. The arguments are as for `render_study`."""
    return render_page(study_document(study, name, store, plots(study)))


def render_html_part(study: Study, theme: Theme) -> str:
    """Return a study as a part of a page. See `render_part`."""
    return render_part(study_document(study, plots=plots(study)), theme)


def plots(study: Study) -> list[Plot]:
    """Return the plots that the study has the records for."""
    from torchwise.report.plots.cost import cost_plot
    from torchwise.report.plots.study import latency_plot, speedup_plot

    found = (speedup_plot(study), latency_plot(study), cost_plot(study))
    return [plot for plot in found if plot]


def study_document(
    study: Study, name: str | None = None, store: str | None = None, plots: Sequence[Plot] | None = None
) -> Document:
    """Return a study as a document. Give it the plots if it is for a page, which has all details of each trial too."""
    candidates, spec = rows(study), workload_of(study)
    took = f"The search took {show.seconds(study.seconds)}. " if study.seconds else ""
    return Document(
        title=spec.target,
        brand=name_report(f"study {study.id}", study.created_at),
        subtitles=(study.inspection.description,),
        blocks=(
            *([trust_text(study.trust)] if study.is_timed else []),
            _decision_panel(study.decision, caches(study)) if study.decision else _undecided_panel(study),
            describe_request(spec, spec.target, f"numerics up to {study.allow}", f"effort {study.effort}"),
            *(Text(line) for line in throughputs(study)),
            _candidate_table(candidates),
            *plot_section(plots or ()),
            *list_section("Not tried", study.excluded, MAX_EXCLUDED),
            *list_section("Notes", notes(study)),
            Section("Next", (Commands(tuple(next_steps(study, name, store))),)),
            *(() if plots is None else _list_evidence(study, candidates)),
        ),
        footer=f"{took}With another GPU, driver, PyTorch or model, this decision is stale, and plans must be verified "
        "again.",
    )


def _list_evidence(study: Study, candidates: Sequence[Candidate]) -> Iterator[Block]:
    """Yield the details that only a page has room for."""
    if entries := trial_entries(study, candidates):
        yield Section("Trials, and how to repeat them", entries)
    model = Section("The original model", (Facts(tuple(inspection_facts(study))),))
    yield Columns((model, environment_section(study.environment)))


def _decision_panel(decision: Decision, more: Sequence[str]) -> Panel:
    is_reliable = decision.speedup is not None and decision.speedup.is_usable
    return Panel(
        "Inconclusive" if decision.is_inconclusive else "Decision",
        decision.reason,
        (
            *([] if decision.plan.is_eager else [Facts(_figures(decision), brief=_describe_costs(decision))]),
            *map(Text, more),
            describe_scope(decision.workload, decision.environment),
        ),
        Tone.GOOD if is_reliable else Tone.WARNING,
    )


def _undecided_panel(study: Study) -> Panel:
    state = "still searching" if study.state is StudyState.RUNNING else "interrupted before a decision"
    finished = sum(trial.state.is_finished for trial in study.trials)
    return Panel("Decision", f"No decision yet: {state}, {show.pluralize(finished, 'trial')} finished.")


def _figures(decision: Decision) -> tuple[Fact, ...]:
    return drop_empty(
        [
            ("speed-up", show.speedup(decision.speedup)),
            ("pays back after", break_even(decision.break_even_calls)),
            (f"saved over {show.pluralize(decision.workload.calls, 'call')}", format_saving(decision)),
            ("cold compile", show.seconds(decision.cold_s)),
            ("warm compile", show.seconds(decision.warm_s)),
            ("error against the reference", show.relative_error(decision.error)),
        ]
    )


def _describe_costs(decision: Decision) -> str:
    """Return compile time, cold and warm, and the error, which the sentence of a decision lacks."""
    words = [f"the first call takes {show.seconds(decision.cold_s)} more"]
    if decision.warm_s is not None:
        words.append(f"{show.seconds(decision.warm_s)} with warm caches")
    if decision.error is not None:
        words.append(f"error {show.relative_error(decision.error)} against the reference")
    return ", ".join(words)


def _candidate_table(candidates: Sequence[Candidate]) -> Table:
    return Table("Candidates", COLUMNS, tuple(map(_candidate_row, candidates)), notes_title="Why")


def _candidate_row(row: Candidate) -> Row:
    floor = "" if row.floor is None else f", floor {show.relative_error(row.floor)}"
    error = "" if row.error is None else f"error {show.relative_error(row.error)}{floor}"
    answer = ANSWERS[row.outcome] if row.outcome else Tone.PLAIN
    return Row(
        (
            "" if row.number is None else row.number,
            Cell(row.name, link=f"#trial-{row.number}" if row.trial else ""),
            show.speedup(row.speedup) if row.trial else "1×",
            show.time(row.time),
            show.seconds(row.cold_s),
            show.seconds(row.warm_s),
            row.memory,
            Cell(row.verdict or show.NONE, answer, detail=error),
            Cell(row.why, note=row.why),
        ),
        Tone.GOOD if row.is_decided else STANDINGS[row.standing],
        row.name,
    )


def caches(study: Study) -> list[str]:
    """Return the decided plan's speed with hot and with cold processor caches, if it was timed with both."""
    decision = study.decision
    trial = next((t for t in study.trials if decision and not decision.plan.is_eager and t.plan == decision.plan), None)
    if decision is None or trial is None or trial.cold_speedup is None:
        return []
    return hot_and_cold(decision.speedup, trial.cold_speedup)


def throughputs(study: Study) -> list[str]:
    """Return the throughput of eager and of the decided plan, or nothing if no training step was tuned."""
    inspection, decision = study.inspection, study.decision
    if inspection.work is None or not study.eager.baseline_s:
        return []
    each = study.eager.baseline_time.mid
    lines = [f"eager: {throughput(inspection.work, each)}"]
    if decision is not None and decision.speedup is not None:
        lines.append(f"{decision.plan}: {throughput(inspection.work, each / decision.speedup.mid)}")
    return [show.one_line(line) for line in lines]


def notes(study: Study) -> list[str]:
    """Return the notes of the inspection. `Study.trust` has the reliability of times."""
    return [show.one_line(note) for note in dict.fromkeys(study.inspection.notes)]


def inspection_facts(study: Study) -> list[Fact]:
    """Return the properties of the original model, as pairs of a name and a value."""
    inspection, measurement = study.inspection, study.inspection.measurement
    names = ["Inputs"] if len(inspection.inputs) == 1 else [f"Inputs {i + 1}" for i in range(len(inspection.inputs))]
    facts = [
        ("Model", inspection.description),
        *zip(names, inspection.inputs, strict=True),
        ("Time per call", show.seconds(study.eager.baseline_time.mid) if study.eager.baseline_s else show.NONE),
        *(("Throughput", line) for line in throughputs(study)),
        ("Eager against itself", show.speedup(measurement.speedup) if measurement.candidate_s else show.NONE),
        ("First call", f"{show.seconds(inspection.first_call_s)} longer than later calls"),
        ("Peak memory of a call", show.size(study.eager_peak_memory)),
        ("Time by kind of operation", format_time_by_kind(inspection)),
        ("Traits", ", ".join(sorted(trait.label for trait in inspection.traits))),
    ]
    return [(name, show.one_line(value) or show.NONE) for name, value in facts]


def next_steps(study: Study, name: str | None = None, store: str | None = None) -> list[Step]:
    """Return the next commands, the most useful first.

    Args:
        study: the results.
        name: the user's name of the study, such as a file, or None for its number in the store.
        store: location of the study's store, or None for the default store.
    """
    spec, decision = workload_of(study), study.decision
    live = is_live(spec)
    effort = () if study.effort == "standard" else ("--effort", study.effort)
    store_option = () if store is None else ("--store", store)
    named = shlex.join([str(study.id) if name is None else name, *store_option])
    steps = []
    if study.state is StudyState.INTERRUPTED:
        command = command_line("tune", spec, *effort, *store_option, allow=study.allow)
        again = "the same torchwise.tune(...) call" if live else command
        steps.append(Step(again, "resumes the search, with the finished trials"))
    elif decision and decision.plan.is_eager and _may_be_lowered(study):
        command = command_line("tune", spec, *effort, *store_option, allow=Numerics.LOWER_PRECISION)
        lower = 'torchwise.tune(..., allow="lower-precision")' if live else command
        steps.append(Step(lower, "also tries lower precision, if your application permits it"))
    if decision and not decision.plan.is_eager:
        applied = Step("fast = torchwise.apply(model, study.decision)", "runs the model with the decided plan")
        shown = Step(
            f"torchwise plans show {named}", "prints the decision as JSON, for torchwise.apply in your program"
        )
        steps.append(applied if live else shown)
    page = f"torchwise report {named} --html report.html"
    return [*steps, Step(page, "writes a page with plots, and a command for each trial")]


def _may_be_lowered(study: Study) -> bool:
    return study.allow in (Numerics.EXACT, Numerics.SAME_PRECISION) and Trait.FLOATING in study.inspection.traits
