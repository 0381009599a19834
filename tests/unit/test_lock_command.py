"""`torchwise lock` and `check`: from the store to the file, from the file to an exit code, and once for real."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lock_samples import FAR, HERE, TARGET, Worker, a_study, an_entry, make_measurement
from typer.testing import CliRunner

import torchwise
from torchwise import cli
from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Interval, Study, StudyState
from torchwise.records.answer import Answer
from torchwise.records.listener import Listener
from torchwise.store import Storage, open_storage
from torchwise.study import Request, run_study
from torchwise.study.lock import Lock, decision, read, write
from torchwise.study.lock.entry import entry_of
from torchwise.trial import ProcessLauncher
from torchwise.workload.target import load

MISBEHAVING = Path(__file__).parent.parent / "targets" / "misbehaving.py"


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """A store in a folder of its own, in which commands run."""
    monkeypatch.chdir(tmp_path)
    with open_storage(str(tmp_path / "store.db")) as opened:
        yield opened


def ran(*words: str) -> tuple[int, str]:
    """Run a command. Return its exit code and its output. Its errors are raised."""
    done = CliRunner().invoke(cli.app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def run_lock(*words: str) -> str:
    code, said = ran("lock", *words, "--store", "store.db")
    assert code == 0
    return said


def store_study(storage: Storage, study: Study, **changes: Any) -> Study:
    """Store a study, as of another model unless it is the first of its kind."""
    inspection = replace(study.inspection, identity=changes.pop("identity", study.inspection.identity))
    return storage.import_study(replace(study, inspection=inspection, **changes))


# From the store to the file.


def test_what_was_decided_is_locked(storage: Storage, tmp_path: Path) -> None:
    store_study(storage, a_study())
    said = run_lock(TARGET)
    assert read(tmp_path / "torchwise.lock").entries == (an_entry(),)
    assert "app.py:make (inference): Run inductor" in said
    assert f"1 for this machine ({an_entry().hardware}), 0 unchanged." in said


def test_locking_again_writes_the_same_bytes(storage: Storage, tmp_path: Path) -> None:
    store_study(storage, a_study())
    run_lock(TARGET)
    first = (tmp_path / "torchwise.lock").read_bytes()
    run_lock()
    assert (tmp_path / "torchwise.lock").read_bytes() == first


def test_sections_of_other_machines_and_targets_stay(storage: Storage, tmp_path: Path) -> None:
    store_study(storage, a_study())
    others = [an_entry(here=FAR), an_entry("b:c")]
    write(Lock().with_entries([*others, an_entry(here=replace(HERE, torch="1.0"))]))
    assert "2 unchanged" in run_lock(TARGET)
    assert set(read().entries) == {*others, an_entry()}


def test_without_targets_those_of_the_file_are_locked_anew(storage: Storage) -> None:
    store_study(storage, a_study())
    store_study(storage, a_study("b:c"), identity="2d" * 8)
    store_study(storage, a_study("not:asked"), identity="3d" * 8)
    write(Lock((an_entry(here=FAR), an_entry("b:c", here=FAR))))
    run_lock()
    assert read().targets == (TARGET, "b:c")
    assert len(read().entries) == 4


def test_the_last_decision_for_each_mode_is_locked(storage: Storage) -> None:
    for number, study in enumerate((a_study(speedup=4.0), a_study(mode="training"), a_study(speedup=3.0))):
        store_study(storage, study, identity=f"{number}d" * 8, created_at=9.0 - number)
    run_lock(TARGET)
    assert set(read().entries) == {an_entry(speedup=3.0), an_entry(mode="training")}


@pytest.mark.parametrize(
    ("here", "why"),
    [
        (None, r"has no decision for app.py:make on this machine and software: torchwise tune app.py:make"),
        (FAR, r"\(its decisions differ in cpu: Other CPU @ 9.00 GHz there, .*\): torchwise tune"),
        (replace(HERE, torch="1.0"), r"\(its decisions differ in torch: 1.0 there, "),
    ],
)
def test_without_a_decision_for_here_nothing_is_written(
    here: Environment | None, why: str, storage: Storage, tmp_path: Path
) -> None:
    if here:
        store_study(storage, a_study(here=here))
    store_study(storage, a_study("b:c"), identity="2d" * 8)
    with pytest.raises(InputError, match=why):
        ran("lock", "b:c", TARGET, "--store", "store.db")
    with pytest.raises(InputError, match=f"torchwise tune {TARGET} --store {tmp_path / 'store.db'}"):
        ran("lock", "b:c", TARGET, "--store", "store.db")
    assert not (tmp_path / "torchwise.lock").exists()


def test_an_unfinished_search_is_not_locked(storage: Storage) -> None:
    store_study(storage, a_study(), state=StudyState.INTERRUPTED)
    with pytest.raises(
        InputError, match=r"study 1 of app.py:make is interrupted.* torchwise tune app.py:make --store \S+ continues"
    ):
        ran("lock", TARGET, "--store", "store.db")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"plan": EAGER, "speedup": None, "answer": Answer.INCONCLUSIVE}, "is inconclusive"),
        ({"speedup": Interval(40.5, 79.5, 105.0)}, r"is 40\.5 to 105 times eager's speed, which is too uncertain"),
    ],
)
def test_what_could_not_be_told_is_not_locked(
    storage: Storage, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    study = a_study()
    assert study.decision is not None
    store_study(storage, replace(study, decision=replace(study.decision, **changes)))
    with pytest.raises(InputError, match=f"{why}.* torchwise tune app.py:make --store .* --fresh"):
        ran("lock", TARGET, "--store", "store.db")
    assert not (tmp_path / "torchwise.lock").exists()


@pytest.mark.parametrize(("unfinished", "finished"), [(TARGET, "b:c"), ("b:c", TARGET)])
def test_of_targets_that_share_a_study_one_alone_may_be_unfinished(
    storage: Storage, unfinished: str, finished: str
) -> None:
    ends = {unfinished: StudyState.INTERRUPTED, finished: StudyState.DECIDED}
    study = store_study(storage, a_study(), state=ends[TARGET])
    other = a_study("b:c")
    asked = (other.workload, "quick")
    storage.store_outcome(study.id, state=ends["b:c"], decision=other.decision, excluded=(), seconds=0.0, asked=asked)
    assert finished in run_lock(finished)
    with pytest.raises(InputError, match=f"study 1 of {unfinished} is interrupted"):
        run_lock(unfinished)


def test_a_decision_whose_study_is_gone_is_not_locked(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    store_study(storage, a_study())
    monkeypatch.setattr(Storage, "list_studies", lambda *_: [])  # as after somebody else deleted it
    with pytest.raises(InputError, match=f"no longer has the study that decided for {TARGET}"):
        ran("lock", TARGET, "--store", "store.db")


def test_targets_of_one_structure_are_locked_together(storage: Storage) -> None:
    """They share a study, in which each has a decision of its own."""
    study = store_study(storage, a_study())
    assert study.decision is not None
    decision = replace(study.decision, workload=replace(study.workload, target="b:c", calls=7))
    asked = (decision.workload, "quick")
    storage.store_outcome(study.id, state=StudyState.DECIDED, decision=decision, excluded=(), seconds=0.0, asked=asked)
    assert ran("lock", TARGET, "b:c", "--store", "store.db")[0] == 0
    locked = {entry.decision.workload.target: entry.decision.workload.calls for entry in read().entries}
    assert locked == {TARGET: study.workload.calls, "b:c": 7}


@pytest.mark.usefixtures("storage")
def test_no_target_at_all_is_refused() -> None:
    with pytest.raises(InputError, match=r"no target is given, and torchwise.lock holds none: torchwise lock TARGET"):
        ran("lock")


@pytest.mark.usefixtures("storage")
def test_a_live_model_is_refused_since_no_command_can_load_it() -> None:
    with pytest.raises(InputError, match="live:Net is a model of a running program"):
        ran("lock", "live:Net", "--store", "store.db")


def test_a_file_that_cannot_be_read_is_not_overwritten(storage: Storage, tmp_path: Path) -> None:
    store_study(storage, a_study())
    (tmp_path / "torchwise.lock").write_text("<<<<<<< HEAD\n")
    with pytest.raises(InputError, match="merge conflict"):
        ran("lock", TARGET, "--store", "store.db")
    assert (tmp_path / "torchwise.lock").read_text() == "<<<<<<< HEAD\n"


# From the file to an exit code.


def patch_launcher(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> None:
    monkeypatch.setattr("torchwise.trial.ProcessLauncher", lambda **_: worker)


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize(
    ("worker", "words", "code", "says"),
    [
        (Worker(make_measurement(2.0)), (), 0, "The lock is valid on this machine: 1 good, 1 other hardware."),
        (
            Worker(make_measurement(1.2), make_measurement(1.2)),
            (),
            1,
            "The lock is not valid on this machine: 1 slower, 1 other hardware.",
        ),
        (Worker(make_measurement(1.2)), ("--no-measure",), 0, "The lock is valid on this machine: 1 good"),
        (Worker(make_measurement(1.2)), ("--threshold", "0.9"), 0, "The lock is valid on this machine: 1 good"),
        (Worker(structure="other"), (TARGET,), 1, "The lock is not valid on this machine: 1 stale"),
        (Worker(), ("b:c",), 2, "torchwise tune b:c && torchwise lock b:c"),
    ],
)
def test_the_exit_code_says_what_was_found(
    worker: Worker, words: tuple[str, ...], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_launcher(monkeypatch, worker)
    write(Lock().with_entries([an_entry(), an_entry("b:c", here=FAR)]))
    found, said = ran("check", *words)
    assert (found, says in said) == (code, True), said


@pytest.mark.usefixtures("storage")
def test_json_holds_what_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch_launcher(monkeypatch, Worker(make_measurement(1.2), make_measurement(1.2)))
    write(Lock((an_entry(),)), "other.lock")
    code, said = ran("check", "--lock", "other.lock", "--json", "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert (code, found["schema"], found["rows"][0]["state"]) == (1, "torchwise.check/1", "slower")
    assert found["rows"][0]["detail"] in said
    assert found["rows"][0]["found"]["mid"] == pytest.approx(1.2)


@pytest.mark.usefixtures("storage")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("check",), "torchwise.lock cannot be read"),
        (("check", "--lock", "none.lock"), "none.lock cannot be read"),
        (("check", "--threshold", "-1"), "threshold is -1.0, but must be at least 0"),
        (("check", "--json", "no-folder/found.json"), "found.json cannot be written: there is no folder"),
        (
            ("lock", TARGET, "--lock", "no-folder/torchwise.lock"),
            "torchwise.lock cannot be written: there is no folder",
        ),
    ],
)
def test_bad_input_ends_with_2_and_a_sentence_before_anything_is_run(
    words: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["torchwise", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("torchwise: ")
    assert why in said


# For real: a worker loads the target, proves and times the plan.


@pytest.mark.slow
@pytest.mark.usefixtures("brief_searches")
def test_a_plan_is_locked_checked_and_served_and_a_wrong_one_is_found(storage: Storage) -> None:
    target, right, wrong = f"{MISBEHAVING}:wrong", Plan(threads=1), Plan(threads=3)
    request = Request(WorkloadSpec(target), effort="quick", plans=(right,))
    study = run_study(request, storage, ProcessLauncher(), Listener())
    assert study.decision is not None
    # On a machine of one core, or beside others, one thread is no plan that pays. This test is not about its speed.
    speedup = Interval(low=1.4, mid=1.5, high=1.6)
    decided = replace(study.decision, plan=right, speedup=speedup, error=1e-9, answer=Answer.YES)
    storage.store_outcome(study.id, state=StudyState.DECIDED, decision=decided, excluded=(), seconds=0.0)
    run_lock(target)
    code, said = ran("check", "--effort", "quick", "--no-measure")
    assert (code, "up to date and correct (" in said) == (0, True), said

    workload = load(target)
    fast = torchwise.apply(workload.call, decision(target, device="cpu"), strict=True)
    with torch.no_grad():
        fast(*workload.examples[0].args)
    assert fast.statistics.optimized == 1

    planted = entry_of(replace(study, decision=replace(decided, plan=wrong)))
    write(Lock((planted,)))
    code, said = ran("check", "--effort", "quick")
    assert (code, "No longer correct" in said, "values: " in said) == (1, True, True), said
