"""From the store to entries: the last decision for a target on this machine, with the software installed here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from torchwise import environment
from torchwise.errors import InputError
from torchwise.lock.entry import Entry, entry_of
from torchwise.records import Decision, Study, StudyState
from torchwise.store import Storage
from torchwise.workload.spec import LIVE


def collect(storage: Storage, targets: Iterable[str], store: str | None = None) -> list[Entry]:
    """Return the entries of `targets`: the last decision of each target for each device and mode.

    Args:
        storage: the store with the decisions.
        targets: their names, as they were tuned.
        store: location of the store that was named for it, or None for the one that every command finds by itself.

    Raises:
        InputError: a target has no decision that holds here, or cannot be checked from a command line. The message has
            the command to run.
    """
    return [entry for target in dict.fromkeys(targets) for entry in _collect_entries(storage, target, store)]


def _collect_entries(storage: Storage, target: str, store: str | None) -> list[Entry]:
    if target.startswith(LIVE):
        raise InputError(
            f"{target} is a model of a running program, which `torchwise check` could not load: tune a factory, as "
            "package.module:factory or path/file.py:factory, and lock that"
        )
    newest: dict[tuple[str, str], Decision] = {}
    differences: list[str] = []
    for decision in storage.decisions(target=target):
        device = decision.environment.device
        if different := decision.environment.differences(environment.detect(device)):
            differences += different[:1]
        else:
            newest.setdefault((device, decision.workload.mode), decision)
    if not newest:
        other = f" (what it has is for another, {differences[0]})" if differences else ""
        raise InputError(
            f"{storage.place} has no decision for {target} on this machine and software{other}: {_tune(target, store)}"
        )
    return [entry_of(_study(storage, decision, store)) for decision in newest.values()]


def _study(storage: Storage, decision: Decision, store: str | None) -> Study:
    """Return the study behind a decision.

    Raises:
        InputError: its search was interrupted, so that another decision may come of it. Or the study is gone. Or the
            measurements were inconclusive, so that there is nothing to check against.
    """
    target = decision.workload.target
    decided = (summary.id for summary in storage.list_studies(target) if summary.plan is not None)
    found = (storage.get_study(study_id, target) for study_id in decided)
    study = next((study for study in found if study.decision == decision), None)
    if study is None:
        raise InputError(f"{storage.place} has no study by which {target} was decided: it was changed meanwhile; again")
    if study.state is not StudyState.DECIDED:
        raise InputError(
            f"study {study.id} of {target} is {study.state}, and may come to another decision: "
            f"{_tune(target, store)} goes on with it"
        )
    if decision.is_inconclusive or not (decision.speedup is None or decision.speedup.is_usable):
        told = (
            "inconclusive"
            if decision.is_inconclusive
            else f"{decision.speedup} times eager's speed, which is no figure"
        )
        raise InputError(
            f"the decision for {target} is {told}, and a lock is checked against figures: run "
            f"{_tune(target, store)} --fresh while the machine is quieter"
        )
    return study


def _tune(target: str, store: str | None) -> str:
    return shlex.join(["torchwise", "tune", target, *(() if store is None else ("--store", store))])
