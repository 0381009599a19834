"""Details of each trial on the page besides its row: choices, checks, costs, and the command that repeats it."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.errors import PlanError
from torchwise.plan.space import choices_of
from torchwise.records import Study, Trial
from torchwise.report import format as show
from torchwise.report import summary
from torchwise.report.commands import reproduce
from torchwise.report.trial_table import Row


@dataclass(frozen=True, slots=True)
class Details:
    """All details of one trial.

    Attributes:
        row: its row in the table.
        anchor: its id on the page.
        choices: effect of each choice of the plan, with its numerics.
        checks: of the verdict: name, outcome, error, floor, detail.
        facts: costs and the like, as pairs of a name and a value.
        notes: warnings about the measurement.
        message: the whole message of a failure.
        traceback: of a failure.
        command: command that tries this plan again.
    """

    row: Row
    anchor: str
    choices: tuple[tuple[str, str], ...]
    checks: tuple[tuple[str, str, str, str, str], ...]
    facts: tuple[summary.Fact, ...]
    notes: tuple[str, ...]
    message: str
    traceback: str
    command: str


def details(study: Study, rows: list[Row]) -> list[Details]:
    """Return all details of every trial, in the order of the table."""
    return [_details(study, row, row.trial) for row in rows if row.trial]


def _details(study: Study, row: Row, trial: Trial) -> Details:
    failure, measurement = trial.failure, trial.measurement
    return Details(
        row=row,
        anchor=f"trial-{trial.number}",
        choices=_choices(trial),
        checks=summary.list_checks(trial.verdict),
        facts=tuple(_facts(trial, study)),
        notes=measurement.caveats if measurement else (),
        message=failure.message if failure and len(failure.message) > len(show.truncate(failure.message, 200)) else "",
        traceback=failure.traceback if failure else "",
        command=reproduce(study, trial.plan),
    )


def _choices(trial: Trial) -> tuple[tuple[str, str], ...]:
    try:
        return tuple((choice.summary, choice.numerics.value) for choice in choices_of(trial.plan))
    except PlanError as error:  # tried by a version, or with a plug-in, that is not installed here
        return ((str(error), "unknown"),)


def _facts(trial: Trial, study: Study) -> list[summary.Fact]:
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
    if trial.seconds:
        found.append(("Duration of the trial", show.seconds(trial.seconds)))
    if started := summary.when(trial.started_at):
        found.append(("Started", started))
    return [(name, value) for name, value in found if value and value != show.NONE]
