"""A study: the decision first, then the evidence with every trial, then the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from torchwise.errors import PlanError
from torchwise.plan import Numerics, Plan, Trait
from torchwise.plan.space import choices_of
from torchwise.records import Decision, Study, StudyState, Trial
from torchwise.records import format as show
from torchwise.records.candidates import Row as Candidate
from torchwise.records.candidates import rows
from torchwise.records.reasons import format_saving, workload_of
from torchwise.records.trial import first_graph_break
from torchwise.report import document as doc
from torchwise.report.facts import (
    OUTCOME_TONES,
    break_even,
    check_table,
    command_line,
    describe_request,
    describe_scope,
    drop_empty,
    environment_section,
    format_time_by_kind,
    hot_and_cold,
    is_live,
    name_report,
    notes,
    options,
    throughput,
    when,
)
from torchwise.report.html import Theme, render_page, render_part
from torchwise.report.steps import steps_section
from torchwise.report.terminal import render_terminal

MAX_EXCLUDED = 6
WIDE, MEDIUM = 130, 80
"""Widths of a terminal from which the table has the reasons, and from which it has everything except the memory."""
COLUMNS = (
    doc.Column("#", is_figure=True, least_width=MEDIUM, medium=doc.Medium.TERMINAL),
    doc.Column("plan", is_wrapped=True),
    doc.speedup_column(),
    doc.Column("per call", is_figure=True, least_width=MEDIUM),
    doc.Column("compile", is_figure=True, least_width=MEDIUM),
    doc.Column("warm", is_figure=True, least_width=WIDE),
    doc.Column("peak memory", is_figure=True, least_width=WIDE),
    doc.Column("answer"),
    doc.Column("why", is_wrapped=True, least_width=WIDE),
)
STANDINGS = {
    "decided": doc.Tone.GOOD,
    "baseline": doc.Tone.STRONG,
    "verified": doc.Tone.PLAIN,
    "ineligible": doc.Tone.MUTED,
}


def render_study(
    study: Study, name: str | None = None, store: str | None = None, *, has_page: bool = False
) -> RenderableType:
    """Return a study for a terminal: decision, candidates with reasons, untried choices, notes, and the next commands.

    The arguments are as for `next_steps`.
    """
    return render_terminal(study_document(study, name, store, has_page=has_page))


def render_decision(decision: Decision) -> RenderableType:
    """Return a decision for a terminal: its reason, its figures, and its target and machine."""
    return render_terminal(decision_document(decision))


def decision_document(decision: Decision) -> doc.Document:
    """Return the report on a decision alone."""
    return doc.Document("", (_decision_panel(decision, ()),))


def render_html(study: Study, name: str | None = None, store: str | None = None) -> str:
    """Return a study as a page. The same study always gives the same page. The arguments are as for `render_study`."""
    return render_page(study_document(study, name, store, plots(study)))


def render_html_part(study: Study, theme: Theme) -> str:
    """Return a study as a part of a page. See `render_part`."""
    return render_part(study_document(study, plots=plots(study)), theme)


def plots(study: Study) -> list[doc.Plot]:
    """Return the plots that the study has the records for."""
    from torchwise.report.plots.accuracy import accuracy_plot
    from torchwise.report.plots.study import cost_plot, latency_plot, speedup_plot

    found = (speedup_plot(study), latency_plot(study), cost_plot(study), accuracy_plot(study))
    return [plot for plot in found if plot]


def study_document(
    study: Study,
    name: str | None = None,
    store: str | None = None,
    plots: Sequence[doc.Plot] | None = None,
    *,
    has_page: bool = False,
) -> doc.Document:
    """Return a study as a document. Give it the plots if it is for a page, which has all details of each trial too."""
    candidates, spec = rows(study), workload_of(study)
    steps = tuple(next_steps(study, name, store, has_page=has_page or plots is not None))
    took = f"The search took {show.seconds(study.seconds)}{_calls_lost(study)}. " if study.seconds else ""
    return doc.Document(
        title=spec.target,
        brand=name_report(f"study {study.id}", study.created_at),
        subtitles=(study.inspection.description,),
        blocks=(
            *([doc.trust_text(study.trust)] if study.is_timed else []),
            _decision_panel(study.decision, caches(study)) if study.decision else _undecided_panel(study),
            describe_request(spec, spec.target, f"numerics up to {study.allow}", f"effort {study.effort}"),
            *(doc.Text(line) for line in throughputs(study)),
            doc.Table("Candidates", COLUMNS, tuple(map(_candidate_row, candidates)), notes_title="Why"),
            *(() if plots is None else steps_section(study)),
            *doc.plot_section(plots or ()),
            *doc.list_section("Not tried", study.excluded, MAX_EXCLUDED),
            *doc.list_section("Notes", [*notes(study), *_list_shares(study)]),
            *([doc.Section("Next", (doc.Commands(steps),))] if steps else []),
            *(() if plots is None else _list_evidence(study, candidates)),
        ),
        footer=f"{took}With another GPU, driver, PyTorch or model, this decision is stale, and plans must be verified "
        "again.",
    )


def _list_shares(study: Study) -> list[str]:
    """List which shares of the model's operators backends take that leave the rest to eager."""
    return [show.one_line(share) for share in dict.fromkeys(trial.share for trial in study.trials) if share]


def _calls_lost(study: Study) -> str:
    """Say how many calls eager answers in the time of the search, or nothing if it was not timed."""
    if not study.eager.baseline_s:
        return ""
    calls = study.cost_model.count_calls(study.seconds)
    return f", in which eager answers {show.pluralize(round(calls), 'call')}" if calls >= 1 else ""


def _list_evidence(study: Study, candidates: Sequence[Candidate]) -> Iterator[doc.Block]:
    """Yield the details that only a page has room for."""
    if entries := trial_entries(study, candidates):
        yield doc.Section("Trials, and how to repeat them", entries)
    model = doc.Section("The original model", (doc.Facts(tuple(inspection_facts(study))),))
    yield doc.Columns((model, environment_section(study.environment)))


def _decision_panel(decision: Decision, more: Sequence[str]) -> doc.Panel:
    is_reliable = decision.speedup is not None and decision.speedup.is_usable
    tone = doc.Tone.GOOD if is_reliable else doc.Tone.WARNING
    return doc.Panel(
        "Inconclusive" if decision.is_inconclusive else "Decision",
        decision.reason,
        (
            *([] if decision.plan.is_eager else [doc.Facts(_figures(decision), brief=_describe_costs(decision))]),
            *map(doc.Text, more),
            describe_scope(decision.workload, decision.environment),
        ),
        doc.Tone.MUTED if decision.is_inconclusive else tone,
    )


def _undecided_panel(study: Study) -> doc.Panel:
    state = "still searching" if study.state is StudyState.RUNNING else "interrupted before a decision"
    finished = sum(trial.state.is_finished for trial in study.trials)
    headline = f"No decision yet: {state}, {show.pluralize(finished, 'trial')} finished."
    return doc.Panel(
        "Decision", headline, tone=doc.Tone.MUTED if study.state is StudyState.RUNNING else doc.Tone.WARNING
    )


def _figures(decision: Decision) -> tuple[doc.Fact, ...]:
    return drop_empty(
        [
            ("speed-up", show.speedup(decision.speedup)),
            ("pays back after", break_even(decision.break_even_calls)),
            (f"saved over {show.pluralize(decision.workload.calls, 'call')}", format_saving(decision)),
            ("cold compile", show.seconds(decision.cold_s)),
            ("warm compile", show.seconds(decision.warm_s)),
            ("error against the reference", show.relative_error(decision.error)),
            ("required", ", ".join(decision.workload.require)),
            ("speed without the requirement", show.speedup(decision.price.ratio) if decision.price else ""),
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


def _candidate_row(row: Candidate) -> doc.Row:
    floor = "" if row.floor is None else f", floor {show.relative_error(row.floor)}"
    error = "" if row.error is None else f"error {show.relative_error(row.error)}{floor}"
    answer = OUTCOME_TONES[row.outcome] if row.outcome else doc.Tone.PLAIN
    return doc.Row(
        (
            "" if row.number is None else row.number,
            doc.Cell(row.name, link=f"#trial-{row.number}" if row.trial else ""),
            show.speedup(row.speedup) if row.trial else "1×",
            show.time(row.time),
            show.seconds(row.cold_s),
            show.seconds(row.warm_s),
            row.memory,
            doc.Cell(row.verdict or show.NONE, answer, detail=error),
            doc.Cell(row.why, note=row.why),
        ),
        doc.Tone.GOOD if row.is_decided else STANDINGS[row.standing],
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


def inspection_facts(study: Study) -> list[doc.Fact]:
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
        *((f"Is {check.name}", f"{check.outcome}: {check.detail}") for check in inspection.properties),
        ("Traits", ", ".join(sorted(trait.label for trait in inspection.traits))),
    ]
    return [(name, show.one_line(value) or show.NONE) for name, value in facts]


def next_steps(
    study: Study, name: str | None = None, store: str | None = None, *, has_page: bool = False
) -> list[doc.Step]:
    """Return the next commands, the most useful first.

    Args:
        study: the results.
        name: the user's name of the study, such as a file, or None for its number in the store.
        store: location of the study's store, or None for the default store.
        has_page: whether they stand in a page, or beside one, so that there is none to write.
    """
    spec, decision = workload_of(study), study.decision
    live = is_live(spec)
    effort = () if study.effort == "standard" else ("--effort", study.effort)
    named = shlex.join([str(study.id) if name is None else name, *(() if store is None else ("--store", store))])
    steps = []
    same = command_line("tune", spec, *effort, allow=study.allow, store=store)
    again = "the same torchwise.tune(...) call" if live else same
    if study.state is StudyState.INTERRUPTED:
        steps.append(doc.Step(again, "resumes the search, with the finished trials"))
    elif decision and decision.is_inconclusive:
        steps.append(doc.Step(again, "goes on, with the finished trials, best on a quieter machine"))
    if study.state is StudyState.DECIDED and decision and decision.plan.is_eager and _may_be_lowered(study):
        command = command_line("tune", spec, *effort, allow=Numerics.LOWER_PRECISION, store=store)
        lower = 'torchwise.tune(..., allow="lower-precision")' if live else command
        steps.append(doc.Step(lower, "also tries lower precision, if your application permits it"))
    if decision and decision.plan.is_eager and any(trial.plan.backend != "eager" for trial in study.trials):
        why = "torchwise.explain(...) with the same arguments" if live else command_line("explain", spec, store=store)
        breaks = first_graph_break(study.trials)
        lists = "lists every graph break with its fix" if breaks else "names the causes why compiled code is not faster"
        steps.append(doc.Step(why, lists))
    if _may_find_batch(study):
        command = command_line("tune", spec, "--batch", "best", *effort, allow=study.allow, store=store)
        best = 'torchwise.tune(..., batch="best")' if live else command
        steps.append(doc.Step(best, "also finds the batch size of most samples per second, instead of this one alone"))
    if decision and not decision.plan.is_eager:
        applied = doc.Step("fast = torchwise.apply(model, study.decision)", "runs the model with the decided plan")
        shown = doc.Step(
            f"torchwise plans show {named}", "shows the decision; with --json FILE, for torchwise.apply in your program"
        )
        steps.append(applied if live else shown)
    if not has_page:
        page = f"torchwise report {named} --html report.html"
        steps.append(doc.Step(page, "writes a page with plots, and a command for each trial"))
    return steps


def _may_find_batch(study: Study) -> bool:
    """Whether throughput was asked for, and the batch size was that of the inputs."""
    spec = study.workload
    is_given = spec.batch is None and spec.latency_limit is None and spec.sizes != "varying"
    return spec.objective == "throughput" and spec.mode == "inference" and is_given


def _may_be_lowered(study: Study) -> bool:
    return study.allow in (Numerics.EXACT, Numerics.SAME_PRECISION) and Trait.FLOATING in study.inspection.traits


STORE = "reproduce.db"
"""A separate store for reproductions. The study's own store would return the trial that it holds."""
MAX_MESSAGE = 200
"""Length of a failure's message from which it is shown by itself, since the reason of the row cuts it."""


def trial_entries(study: Study, candidates: Sequence[Candidate]) -> tuple[doc.Entry, ...]:
    """Return all details of every trial, in the order of the table."""
    return tuple(
        doc.Entry(
            f"{row.number}. {row.name}",
            doc.Text(row.why, tone=doc.Tone.MUTED),
            tuple(_describe_trial(study, row.name, row.trial)),
            key=f"trial-{row.number}",
            is_folded=True,
        )
        for row in candidates
        if row.trial
    )


def _describe_trial(study: Study, name: str, trial: Trial) -> Iterator[doc.Block]:
    failure, measurement = trial.failure, trial.measurement
    yield doc.Code(reproduce(study, trial.plan), "Command that tries this plan again")
    if choices := _describe_choices(trial):
        yield doc.Items(choices)
    yield doc.Facts(_collect_facts(trial, study))
    yield from check_table(name, trial.verdict)
    yield from (doc.Text(note, "Note: ") for note in (measurement.caveats if measurement else ()))
    if failure and len(failure.message) > len(show.truncate(failure.message, MAX_MESSAGE)):
        yield doc.Code(failure.message, "Message")
    if failure and failure.traceback:
        yield doc.Code(failure.traceback, "Traceback")


def _describe_choices(trial: Trial) -> tuple[str, ...]:
    try:
        return tuple(f"{choice.summary} ({choice.numerics.value})" for choice in choices_of(trial.plan))
    except PlanError as error:  # tried by a version, or with a plug-in, that is not installed here
        return (f"{error} (unknown)",)


def _collect_facts(trial: Trial, study: Study) -> tuple[doc.Fact, ...]:
    costs, measurement = trial.costs, trial.measurement
    found = [("Recorded", trial.reason), ("Plan id", trial.plan.id)]
    if measurement and measurement.candidate_s:
        rounds = show.pluralize(len(measurement.candidate_s), "round")
        found.append(("Measured", f"{rounds} of {show.pluralize(measurement.calls_per_round, 'call')} each"))
        if measurement.busy_s is not None:
            found.append(("GPU waiting for the host", show.percent(measurement.launch_share)))
    if costs:
        found.append(("Cold compile", show.seconds(costs.cold_s)))
        found.append(("Warm compile", show.seconds(costs.warm_s)))
        eager = show.size(study.eager_peak_memory)
        found.append(("Peak memory", f"{show.size(costs.peak_memory)}, eager {eager}"))
        found.append(("Compile caches", show.size(costs.cache_bytes)))
    found.append(("Operators", trial.share))
    if trial.seconds:
        found.append(("Duration of the trial", show.seconds(trial.seconds)))
    return drop_empty([*found, ("Started", when(trial.started_at))])


def reproduce(study: Study, plan: Plan) -> str:
    """Return the shell command, or for a live object the Python snippet, that tries this one plan again."""
    spec = workload_of(study)
    if not is_live(spec):
        return command_line("tune", spec, "--plan", plan.to_json(), "--store", STORE, "--fresh", allow=study.allow)
    arguments = {**options(spec, study.allow), "store": STORE, "fresh": True}
    arguments.pop("seed", None)  # a live model has its weights already
    return (
        "import torchwise\n\n"
        f"plan = torchwise.Plan.from_json({plan.to_json()!r})\n"
        f"study = torchwise.tune(model, args, plans=[plan], "
        f"{', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    )
