"""Commands in a report, quoted for a shell: to repeat a trial, and to continue."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from torchwise.plan import Numerics, Plan, Trait
from torchwise.plan.workload_spec import LIVE
from torchwise.records import Study, StudyState
from torchwise.report.command_line import command_line, options
from torchwise.report.costs import workload_of

STORE = "reproduce.db"
"""A separate store for reproductions. The study's own store would return the trial that it holds."""
BREAK = " \\"
"""End of a line whose command continues on the next line."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and its purpose."""

    command: str
    purpose: str


def is_live(study: Study) -> bool:
    """Whether the workload exists only in a Python program."""
    return workload_of(study).target.startswith(LIVE)


def reproduce(study: Study, plan: Plan) -> str:
    """Return the shell command, or for a live object the Python snippet, that tries this one plan again."""
    if not is_live(study):
        return _tune(study, "--plan", plan.to_json(), "--store", STORE, "--fresh")
    arguments = {**options(workload_of(study), study.allow), "store": STORE, "fresh": True}
    arguments.pop("seed", None)  # a live model has its weights already
    return (
        "import torchwise\n\n"
        f"plan = torchwise.Plan.from_json({plan.to_json()!r})\n"
        f"study = torchwise.tune(model, args, plans=[plan], "
        f"{', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    )


def next_steps(study: Study, name: str | None = None, store: str | None = None) -> list[Step]:
    """Return the next commands, the most useful first.

    Args:
        study: the results.
        name: the user's name of the study, such as a file, or None for its number in the store.
        store: location of the study's store, or None for the default store.
    """
    live, decision = is_live(study), study.decision
    effort = () if study.effort == "standard" else ("--effort", study.effort)
    store_option = () if store is None else ("--store", store)
    named = shlex.join([str(study.id) if name is None else name, *store_option])
    steps = []
    if study.state is StudyState.INTERRUPTED:
        again = "the same torchwise.tune(...) call" if live else _tune(study, *effort, *store_option)
        steps.append(Step(again, "resumes the search, with the finished trials"))
    elif decision and decision.plan.is_eager and _may_be_lowered(study):
        command = command_line("tune", workload_of(study), *effort, *store_option, allow=Numerics.LOWER_PRECISION)
        lower = 'torchwise.tune(..., allow="lower-precision")' if live else command
        steps.append(Step(lower, "also tries lower precision, if your application permits it"))
    if decision and not decision.plan.is_eager:
        applied = "fast = torchwise.apply(model, study.decision)"
        steps.append(
            Step(applied, "runs the model with the decided plan")
            if live
            else Step(
                f"torchwise plans show {named}", "prints the decision as JSON, for torchwise.apply in your program"
            )
        )
    return [
        *steps,
        Step(f"torchwise report {named} --html report.html", "writes a page with plots, and a command for each trial"),
    ]


def wrap_command(command: str, width: int) -> list[str]:
    """Return a shell command as lines that fit `width` if its words allow it. Pasted, they are one command."""
    if len(command) <= width or not command.startswith("torchwise "):
        return [command]
    units: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        # An option stays with its value.
        if units and units[-1].startswith("--") and " " not in units[-1] and not word.startswith("-"):
            units[-1] += f" {word}"
        else:
            units.append(word)
    lines = [""]
    for unit in units:
        if len(lines[-1]) + 1 + len(unit) + len(BREAK) > width and lines[-1]:
            lines.append("   ")
        lines[-1] += f" {unit}" if lines[-1] else unit
    return [line + BREAK for line in lines[:-1]] + lines[-1:]


def _may_be_lowered(study: Study) -> bool:
    return study.allow in (Numerics.EXACT, Numerics.SAME_PRECISION) and Trait.FLOATING in study.inspection.traits


def _tune(study: Study, *more: str) -> str:
    return command_line("tune", workload_of(study), *more, allow=study.allow)
