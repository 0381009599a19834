"""Stores, decisions and disks that fail a program which serves: each call is answered all the same."""

from __future__ import annotations

import json
import logging
import multiprocessing
import resource
import signal
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise
from live_decisions import make_decision
from store_samples import a_study, claim, complete_trial, create
from torchwise import artifact
from torchwise.alerts import OnceLog
from torchwise.artifact import package
from torchwise.artifact.package import Manifest
from torchwise.errors import InputError, StorageError, TorchwiseError
from torchwise.plan import EAGER, Plan
from torchwise.records import Decision
from torchwise.runtime.api import Study
from torchwise.runtime.dynamo import backend
from torchwise.runtime.dynamo.decide import SPENT
from torchwise.store import engines, open_storage

PLAN = Plan(threads=torch.get_num_threads() + 1)
NET = torch.nn.Linear(4, 4).eval()
X = torch.randn(3, 4)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with one study and one finished trial."""
    with open_storage(str(tmp_path / "torchwise.db")) as storage:
        study = create(storage)
        storage.finish_trial(study.id, complete_trial(claim(storage, study.id)))
    return tmp_path / "torchwise.db"


def count_trials(store: Path) -> int:
    with open_storage(str(store)) as storage:
        (study,) = storage.list_studies()
        return len(storage.get_study(study.id).trials)


def lock_store(store: Path) -> Any:
    other = sqlite3.connect(store, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    return other


def delete_store(store: Path) -> None:
    store.unlink()


def truncate_store(store: Path) -> None:
    store.write_bytes(store.read_bytes()[:1000])


def a_folder(store: Path) -> None:
    store.unlink()
    store.mkdir()


@pytest.mark.parametrize("fault", [lock_store, delete_store, truncate_store, a_folder])
@torch.no_grad()
def test_a_store_that_fails_after_the_plan_was_applied_is_nobodys_loss(
    store: Path, fault: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHWISE_STORE", str(store))
    fast = torchwise.apply(NET, make_decision(NET, PLAN, X))
    kept = fault(store)
    torchwise.freeze(fast)
    torchwise.apply(NET, fast.decision)
    for x in (X, X, torch.randn(5, 4)):
        assert torch.equal(fast(x), NET(x))
    if kept is not None:
        kept.close()
        assert count_trials(store) == 1


@pytest.mark.parametrize("fault", [lock_store, truncate_store, a_folder])
@torch.no_grad()
def test_a_store_that_fails_under_torch_compile_leaves_the_graph_to_inductor(
    store: Path, fault: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engines, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr("torchwise._torch.dynamo.compile_graph", lambda module, _inputs: module.forward)
    monkeypatch.setattr("torchwise.runtime.dynamo.graph_backend._logged", OnceLog())
    monkeypatch.setattr(SPENT, "seconds", 0.0)
    kept = fault(store)
    torch._dynamo.reset()
    model = torch.compile(NET, backend=backend, options={"store": str(store), "budget": 0, "progress": False})
    with caplog.at_level(logging.WARNING, "torchwise"):
        assert torch.equal(model(X), NET(X))
    assert "left to Inductor, unmeasured" in caplog.text
    if kept is not None:
        kept.close()
        assert count_trials(store) == 1


def _fill_disk(store: str, said: Any) -> None:
    """Store trials while files may grow by a few pages only, as on a disk that fills up."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    largest = max(file.stat().st_size for file in Path(store).parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 30_000, resource.RLIM_INFINITY))
    finished_trials = 1
    try:
        for number in range(500):
            with open_storage(store) as storage:
                study = storage.list_studies()[0]
                trial = claim(storage, study.id, Plan(threads=number + 2))
                storage.finish_trial(study.id, complete_trial(trial))
            finished_trials += 1
    except TorchwiseError as error:
        said.put((finished_trials, type(error).__name__, str(error)))
    except BaseException as error:  # an unexpected error is the test's result
        said.put((finished_trials, repr(error), ""))


def test_a_full_disk_loses_nothing_that_was_stored(store: Path) -> None:
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    child = context.Process(target=_fill_disk, args=(str(store), said))
    child.start()
    kept, kind, message = said.get(timeout=60)
    child.join(60)
    assert kind == "StorageError", message
    assert str(store) in message
    assert kept > 1
    with open_storage(str(store)) as storage:
        trials = storage.get_study(storage.list_studies()[0].id).trials
        assert sum(trial.state.value == "complete" for trial in trials) == kept
        storage.finish_trial(1, complete_trial(claim(storage, 1, Plan(threads=999))))


def _write_limited(write: Callable[[], object], said: Any) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY))
    try:
        write()
        said.put(("nothing", ""))
    except BaseException as error:  # as above
        said.put((type(error).__name__, str(error)))


@pytest.mark.parametrize("what", ["artifact", "json", "html"])
def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path, what: str) -> None:
    file = tmp_path / f"old.{what}"
    file.write_text("old")
    study = Study(a_study())
    write: dict[str, Callable[[], object]] = {
        "artifact": lambda: package.put(file, b"new " * 1000),
        "json": lambda: study.save_json(file),
        "html": lambda: study.save_html(file),
    }
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    child = context.Process(target=_write_limited, args=(write[what], said))
    child.start()
    kind, message = said.get(timeout=60)
    child.join(60)
    assert kind == ("InputError" if what == "artifact" else "StorageError"), message
    assert f"{file} cannot be written: File too large" in message
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [(file.name, "old")]


def test_a_device_that_is_full_is_named() -> None:
    with pytest.raises(StorageError, match="/dev/full cannot be written: No space left on device"):
        Study(a_study()).save_json("/dev/full")


@torch.no_grad()
def test_a_log_that_cannot_be_written_costs_nobody_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Alerts and structured logs go to a file on a full disk, while the plan fails."""
    handler = logging.FileHandler("/dev/full")
    logging.getLogger("torchwise").addHandler(handler)
    try:
        fast = torchwise.apply(NET, make_decision(NET, Plan(capture="call"), X))  # which needs a GPU
        for _ in range(5):
            assert torch.equal(fast(X), NET(X))
    finally:
        logging.getLogger("torchwise").removeHandler(handler)
        with suppress(OSError):
            handler.close()
    assert fast.statistics.opened == 1
    assert "No space left on device" in capsys.readouterr().err


def tamper_decision(change: Callable[[dict[str, Any]], object]) -> str:
    read = json.loads(make_decision(NET, PLAN, X).to_json())
    change(read)
    return json.dumps(read)


UNREADABLE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another schema": (lambda d: d.update(schema="torchwise.decision/9"), "torchwise.decision/9"),
    "a plan that is a word": (lambda d: d.update(plan="rm -rf"), "plan"),
    "a precision of no torch": (lambda d: d["plan"].update(precision="fp0"), "fp0"),
    "threads below one": (lambda d: d["plan"].update(threads=-3), "threads is -3"),
    "a plan that contradicts itself": (lambda d: d["plan"].update(mode="max-autotune"), "mode"),
    "a pickle in its place": (lambda d: d.update(reason={"__reduce__": ["os.system", "true"]}), "reason"),
    "a machine of numbers": (lambda d: d.update(environment=[1, 2]), "environment"),
}


@pytest.mark.parametrize("fault", UNREADABLE)
def test_a_decision_that_was_tampered_with_is_refused(fault: str) -> None:
    change, said = UNREADABLE[fault]
    with pytest.raises(InputError, match=said):
        Decision.from_json(tamper_decision(change))


@pytest.mark.parametrize("text", ["", "{", "null", '{"plan"', "\x80\x04K\x01."], ids=range(5))
def test_what_is_no_decision_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Decision.from_json(text)


DISTRUSTED: dict[str, Callable[[dict[str, Any]], object]] = {
    "another torch": lambda d: d["environment"].update(torch="1.0"),
    "another machine": lambda d: d["environment"].update(cpu="Z80"),
    "another model": lambda d: d.update(structure="0" * 16),
    "a transform of nobody": lambda d: d["plan"].update(transforms=["os.system"]),
    "a backend of nobody": lambda d: d["plan"].update(backend="subprocess"),
    "an option of no Inductor": lambda d: d["plan"].update(backend="inductor", options=[["os.system", "true"]]),
    "inputs of nowhere": lambda d: d.update(inputs=["[0][0] float32[1, 4] (4, 1)"]),
}


@pytest.mark.parametrize("fault", DISTRUSTED)
@torch.no_grad()
def test_a_decision_that_reads_well_and_is_wrong_runs_nothing(fault: str) -> None:
    """If it holds for something else, or names things that do not exist, the original answers."""
    try:
        decision = Decision.from_json(tamper_decision(DISTRUSTED[fault]))
    except InputError:  # refused at once is as good
        return
    fast = torchwise.apply(NET, decision)
    for _ in range(5):
        assert torch.equal(fast(X), NET(X))
    assert fast.statistics.optimized == 0
    assert sum(fast.statistics.original.values()) == 5


@torch.no_grad()
def test_an_artifact_that_is_gone_after_it_was_loaded_is_nobodys_loss(tmp_path: Path) -> None:
    file, decision = tmp_path / "model.tw", make_decision(NET, PLAN, X)
    artifact.save(file, NET, make_decision(NET, EAGER, X), X)
    assert artifact.load(file).plan == EAGER
    manifest = Manifest("1", decision.environment, {}, {}, 1.0, 1.0, 0)
    package.put(file, package.pack(manifest, decision, {})[1])
    fast = torchwise.apply(NET, artifact.load(file))
    file.unlink()
    for _ in range(3):
        assert torch.equal(fast(X), NET(X))
    assert fast.statistics.optimized == 3
