"""Find a study by the user's text (a number, `latest`, or a JSON file), and a plan of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchwise import parsing
from torchwise.errors import InputError
from torchwise.plan import EAGER, Plan
from torchwise.records import Decision, Study


def find_study(name: str, store: str | None) -> Study:
    """Return the study that `name` refers to. `latest` is the one with the newest decision.

    Raises:
        InputError: there is no such study. The message says which studies there are.
    """
    if name.endswith(".json"):
        return read_study(Path(name))
    from torchwise.store import open_storage

    if name != "latest" and not name.isdecimal():
        raise InputError(f"study is {name!r}, but must be a number, `latest` or a .json file")
    with open_storage(store, existing=True) as storage:
        if name == "latest":
            study = storage.latest_study()
            if study is None:
                raise InputError("the store holds no study yet: torchwise tune TARGET creates one")
            return study
        return storage.get_study(int(name))


def find_decided(name: str, store: str | None) -> tuple[Study, Decision]:
    """Return the study that `name` refers to, and its decision.

    Raises:
        InputError: there is no such study, or it has no decision. The message says how to get one.
    """
    study = find_study(name, store)
    if study.decision is None:
        raise InputError(f"study {name} is {study.state}, and has no decision yet: tune it again to continue")
    return study, study.decision


def find_plan(name: str | None, study: Study, others: Sequence[Plan] = ()) -> Plan:
    """Return the plan of `study` that `name` refers to.

    Args:
        name: `eager`, or the id of a plan or the beginning of one, or None for the decided plan.
        study: the study with the plans.
        others: plans that `name` may refer to, besides eager and those of the study.

    Raises:
        InputError: no plan matches, or several do. The message lists the plans.
    """
    if name is None:
        if study.decision is None:
            raise InputError(f"study {study.id} is {study.state} and has no decision yet, so a plan must be named")
        return study.decision.plan
    plans = dict.fromkeys((EAGER, *(trial.plan for trial in study.trials), *others))
    matches = [plan for plan in plans if name and plan.id.startswith(name)] or [p for p in plans if str(p) == name]
    if len(matches) == 1:
        return matches[0]
    shown = "".join(f"\n  {plan.id}  {plan}" for plan in matches or plans)
    if matches:
        raise InputError(f"plan is {name!r}, but must be the beginning of exactly one id:{shown}")
    raise InputError(f"plan is {name!r}, but must be an id, or its beginning, of study {study.id}:{shown}")


def read_study(file: Path) -> Study:
    """Read a study from JSON.

    Raises:
        InputError: the file cannot be read, or contains no study.
    """
    return parsing.read(file, Study.from_json)
