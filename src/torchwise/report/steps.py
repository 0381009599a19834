"""A plan step by step: how much each of its changes gains, and by which rules it was verified."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from torchwise.plan import EAGER, Plan
from torchwise.records import CheckName, Study
from torchwise.records import format as show
from torchwise.records.candidates import verdict_word
from torchwise.records.reasons import workload_of
from torchwise.records.steps import PlanStep, list_steps
from torchwise.report import document as doc
from torchwise.report.facts import OUTCOME_TONES, describe_request, is_live, name_report
from torchwise.report.terminal import render_terminal

COLUMNS = (
    doc.Column("step", is_wrapped=True),
    doc.speedup_column(),
    doc.Column("over the step before", is_figure=True),
    doc.Column("error", is_figure=True),
    doc.Column("answer", is_wrapped=True),
)
RULES = (CheckName.SUBSTITUTION, CheckName.DISTRIBUTION, CheckName.INDEPENDENCE, CheckName.REPRODUCED_NOISE)
"""Checks of other operators, and of random answers, whose rules a reader must know to trust the plan."""

NO_STEPS = "The plan is eager, which has no steps. Name another plan with --plan PLAN."


def render_steps(study: Study, plan: Plan, name: str | None = None, store: str | None = None) -> RenderableType:
    """Return a plan step by step for a terminal. The arguments are as for `steps_document`."""
    return render_terminal(steps_document(study, plan, name, store))


def steps_document(study: Study, plan: Plan, name: str | None = None, store: str | None = None) -> doc.Document:
    """Return a plan of a study step by step as a document.

    Args:
        study: the study, whose trials are shown.
        plan: the plan.
        name: the user's name of the study, such as a file, or None for its number in the store.
        store: location of the study's store, or None for the default store.
    """
    spec, steps = workload_of(study), list_steps(study, plan)
    commands = tuple(_list_commands(study, plan, steps, name, store))
    return doc.Document(
        spec.target,
        (
            describe_request(spec, spec.target, f"numerics up to {study.allow}"),
            *(_list_steps(plan, steps) if steps else [doc.Text(NO_STEPS)]),
            *([doc.Section("Next", (doc.Commands(commands),))] if commands else []),
        ),
        brand=name_report(f"study {study.id}", study.created_at),
    )


def _list_steps(plan: Plan, steps: Sequence[PlanStep]) -> Iterator[doc.Block]:
    yield doc.Text(f"{plan}: {show.pluralize(len(steps), 'step')} from eager")
    yield make_steps_table(steps)
    yield from doc.list_section("How the plan was judged", tell_rules(steps[-1]))


def make_steps_table(steps: Sequence[PlanStep]) -> doc.Table:
    """Return a table of the steps: each one's speed-up over eager and over the step before, and its verdict."""
    eager = doc.Row((str(EAGER), "1×", show.NONE, show.NONE, "reference"), name=str(EAGER))
    return doc.Table("Step by step", COLUMNS, (eager, *map(_make_row, steps)))


def tell_rules(step: PlanStep) -> list[str]:
    """Return the checks of a step's other operators and of its random answers, each in a line."""
    checks = step.trial.verdict.checks if step.trial and step.trial.verdict else ()
    return [f"{check.name}: {check.outcome}. {check.detail}" for check in checks if check.name in RULES]


def steps_section(study: Study) -> tuple[doc.Table, ...]:
    """Return the steps of the decided plan for its report, or nothing if it has one, or one was not measured."""
    steps = list_steps(study)
    return (make_steps_table(steps),) if len(steps) > 1 and not any(step.is_missing for step in steps) else ()


def _make_row(step: PlanStep) -> doc.Row:
    verdict = step.trial.verdict if step.trial else None
    tone = OUTCOME_TONES[verdict.outcome] if verdict else doc.Tone.PLAIN
    return doc.Row(
        (
            show.one_line(f"+ {step.change}"),
            show.speedup(step.speedup),
            show.speedup(step.gain),
            show.relative_error(verdict.error if verdict else None),
            doc.Cell(_tell_answer(step), tone),
        ),
        name=step.change,
    )


def _tell_answer(step: PlanStep) -> str:
    trial = step.trial
    if trial is None:
        return "not tried"
    word = verdict_word(trial.verdict) or (show.one_line(str(trial.failure)) if trial.failure else trial.state.value)
    return f"{word}, stopped early" if step.is_missing and trial.state.is_finished else word


def _list_commands(
    study: Study, plan: Plan, steps: Sequence[PlanStep], name: str | None, store: str | None
) -> Iterator[doc.Step]:
    """Yield the command that measures missing steps, if there are any."""
    missing = sum(step.is_missing for step in steps)
    if not missing:
        return
    purpose = f"measures {show.pluralize(missing, 'step')} that the study lacks"
    if is_live(workload_of(study)):
        yield doc.Step("torchwise.tune(model, args, ..., plans=[step.plan for step in study.steps()])", purpose)
        return
    chosen = () if study.decision and plan == study.decision.plan else ("--plan", str(plan))
    words = [str(study.id) if name is None else name, "--steps", "--measure", *chosen]
    yield doc.Step(shlex.join(["torchwise", "report", *words, *(() if store is None else ("--store", store))]), purpose)
