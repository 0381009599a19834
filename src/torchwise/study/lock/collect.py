"""Read the last decision for each target from the store, for this machine and the software installed here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from torchwise import environment
from torchwise.errors import InputError
from torchwise.plan.workload_spec import LIVE
from torchwise.records import Decision, Study, StudyState
from torchwise.store import Storage
from torchwise.study.lock.entry import Entry, entry_of


def collect(storage: Storage, targets: Iterable[str], store: str | None = None) -> list[Entry]:
    """Return the entries of `targets`: the last decision of each target for each device and mode.

    Args:
        storage: the store with the decisions.
        targets: their names, as they were tuned.
        store: location of the store for commands in messages, or None for the default store.

    Raises:
        InputError: a target has no decision for this machine, or cannot be loaded by a command. The message has the
            command to run.
    """
    return [entry for target in dict.fromkeys(targets) for entry in _collect_entries(storage, target, store)]


def _collect_entries(storage: Storage, target: str, store: str | None) -> list[Entry]:
    if target.startswith(LIVE):
        raise InputError(
            f"{target} is a model of a running program, which `torchwise check` cannot load: tune and lock a factory, "
            "as package.module:factory or path/file.py:factory"
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
        other = f" (its decisions differ in {differences[0]})" if differences else ""
        raise InputError(
            f"{storage.place} has no decision for {target} on this machine and software{other}: {_tune(target, store)}"
        )
    return [entry_of(_study(storage, decision, store)) for decision in newest.values()]


def _study(storage: Storage, decision: Decision, store: str | None) -> Study:
    """Return the study behind a decision.

    Raises:
        InputError: its search was interrupted, so the decision may change. Or the study was deleted. Or the
            measurements were inconclusive, so a check has no figures to compare with.
    """
    target = decision.workload.target
    decided = (summary.id for summary in storage.list_studies(target) if summary.plan is not None)
    found = (storage.get_study(study_id, target) for study_id in decided)
    study = next((study for study in found if study.decision == decision), None)
    if study is None:
        raise InputError(f"{storage.place} no longer has the study that decided for {target}: run the command again")
    if study.state is not StudyState.DECIDED:
        raise InputError(
            f"study {study.id} of {target} is {study.state}, so its decision may change: "
            f"{_tune(target, store)} continues it"
        )
    if decision.is_inconclusive or not (decision.speedup is None or decision.speedup.is_usable):
        result = (
            "inconclusive"
            if decision.is_inconclusive
            else f"{decision.speedup} times eager's speed, which is too uncertain"
        )
        raise InputError(
            f"the decision for {target} is {result}, but a lock needs reliable figures: run "
            f"{_tune(target, store)} --fresh while the machine is quieter"
        )
    return study


def _tune(target: str, store: str | None) -> str:
    return shlex.join(["torchwise", "tune", target, *(() if store is None else ("--store", store))])
