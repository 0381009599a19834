"""Each trial of a study on its page, besides its row: choices, checks, costs, and the command that repeats it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchwise.errors import PlanError
from torchwise.plan import Plan
from torchwise.plan.space import choices_of
from torchwise.records import Study, Trial
from torchwise.records import format as show
from torchwise.records.candidates import Row as Candidate
from torchwise.records.reasons import workload_of
from torchwise.report.commands import command_line, is_live, options
from torchwise.report.document import Block, Code, Entry, Fact, Facts, Items, Text, Tone
from torchwise.report.facts import check_table, drop_empty, when

STORE = "reproduce.db"
"""A separate store for reproductions. The study's own store would return the trial that it holds."""
MAX_MESSAGE = 200
"""Length of a failure's message from which it is shown by itself, since the reason of the row cuts it."""


def trial_entries(study: Study, candidates: Sequence[Candidate]) -> tuple[Entry, ...]:
    """Return all details of every trial, in the order of the table."""
    return tuple(
        Entry(
            f"{row.number}. {row.name}",
            Text(row.why, tone=Tone.MUTED),
            tuple(_describe_trial(study, row.name, row.trial)),
            key=f"trial-{row.number}",
            is_folded=True,
        )
        for row in candidates
        if row.trial
    )


def _describe_trial(study: Study, name: str, trial: Trial) -> Iterator[Block]:
    failure, measurement = trial.failure, trial.measurement
    yield Code(reproduce(study, trial.plan), "Command that tries this plan again")
    if choices := _describe_choices(trial):
        yield Items(choices)
    yield Facts(_collect_facts(trial, study))
    yield from check_table(name, trial.verdict)
    yield from (Text(note, "Note: ") for note in (measurement.caveats if measurement else ()))
    if failure and len(failure.message) > len(show.truncate(failure.message, MAX_MESSAGE)):
        yield Code(failure.message, "Message")
    if failure and failure.traceback:
        yield Code(failure.traceback, "Traceback")


def _describe_choices(trial: Trial) -> tuple[str, ...]:
    try:
        return tuple(f"{choice.summary} ({choice.numerics.value})" for choice in choices_of(trial.plan))
    except PlanError as error:  # tried by a version, or with a plug-in, that is not installed here
        return (f"{error} (unknown)",)


def _collect_facts(trial: Trial, study: Study) -> tuple[Fact, ...]:
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
