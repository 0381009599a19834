"""`apply` heeds approvals: looked up once, waiting for nothing, and never at the cost of a call."""

from __future__ import annotations

import logging
import pickle
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise
from live_decisions import make_decision
from postgres_server import PostgresServer
from store_samples import a_ruling, a_study, claim, complete_trial, create
from torchwise.errors import RefusedPlanError, StorageError
from torchwise.plan import EAGER, Plan
from torchwise.records import Decision, Standing, Study, StudyState
from torchwise.runtime import api
from torchwise.runtime.background import search
from torchwise.runtime.background.protocol import Message, Order
from torchwise.store import downgrade_storage, open_storage, read_storage
from torchwise.study import Caches, Request
from torchwise.study.apply_approvals import apply_stored_approvals

PLAN, OTHER = (Plan(threads=torch.get_num_threads() + more) for more in (1, 2))
NET = torch.nn.Linear(4, 4).eval()
X = torch.randn(3, 4)
DECISION = make_decision(NET, PLAN, X)
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


def rule(url: str, plan: Plan, standing: Standing, decision: Decision = DECISION) -> None:
    workload, hardware = decision.workload, decision.environment.hardware
    ruling = a_ruling(plan, standing, target=workload.target, mode=workload.mode, hardware=hardware)
    with open_storage(url) as storage:
        storage.store_approval(ruling)


def store_study(url: str) -> None:
    """Store a study of NET, decided for PLAN, that proved OTHER as well."""
    plain = a_study(DECISION.identity, DECISION.workload.target, environment=DECISION.environment)
    inspection = replace(plain.inspection, structure=DECISION.structure, inputs=DECISION.inputs)
    with open_storage(url) as storage:
        study = create(storage, replace(plain, inspection=inspection))
        for plan in (PLAN, OTHER):
            storage.finish_trial(study.id, complete_trial(claim(storage, study.id, plan)))
        storage.store_outcome(study.id, state=StudyState.DECIDED, decision=DECISION, excluded=[], seconds=1)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the default store, which is not there yet."""
    url = str(tmp_path / "folder" / "default.db")
    monkeypatch.setenv("TORCHWISE_STORE", url)
    return url


@torch.no_grad()
def answers(fast: Any) -> None:
    assert torch.equal(fast(X), NET(X))


def test_a_plan_that_is_permitted_runs(store: str, caplog: pytest.LogCaptureFixture) -> None:
    rule(store, PLAN, Standing.APPROVED)
    fast = torchwise.apply(NET, DECISION, strict=True)
    answers(fast)
    assert (fast.decision, fast.statistics.optimized) == (DECISION, 1)
    assert not caplog.records


def test_a_rejected_plan_never_runs_and_the_log_says_so_once(store: str, caplog: pytest.LogCaptureFixture) -> None:
    rule(store, PLAN, Standing.REJECTED)
    fast = torchwise.apply(NET, DECISION)
    for _ in range(3):
        answers(fast)
    assert (fast.statistics.optimized, fast.statistics.original.total()) == (0, 3)
    (said,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert f"plan {PLAN} is refused (bob rejected it: it is calm)" in said
    copied = pickle.loads(pickle.dumps(fast))
    answers(copied)
    assert copied.statistics.optimized == 0


def test_strict_refuses_what_is_not_permitted(store: str) -> None:
    rule(store, PLAN, Standing.REJECTED)
    text = r"bob rejected it: .* torchwise plans approvals lists .* withdraw removes"
    with pytest.raises(RefusedPlanError, match=text):
        torchwise.apply(NET, DECISION, strict=True)


def test_a_pinned_plan_runs_in_the_decided_one_s_place(store: str) -> None:
    store_study(store)
    rule(store, OTHER, Standing.PINNED)
    fast = torchwise.apply(NET, DECISION, strict=True)
    answers(fast)
    assert (fast.decision.plan, fast.statistics.optimized) == (OTHER, 1)
    assert "bob pinned it: it is calm" in fast.decision.reason


def test_a_store_of_one_s_own_is_asked_in_place_of_the_default(store: str, tmp_path: Path) -> None:
    own = str(tmp_path / "own.db")
    rule(own, PLAN, Standing.REJECTED)
    rule(store, PLAN, Standing.PINNED)
    assert torchwise.apply(NET, DECISION, store=own).decision.plan == EAGER
    assert torchwise.apply(NET, DECISION).decision.plan == PLAN


def test_optimize_asks_the_store_that_it_tunes_into(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(tmp_path / "own.db")
    store_study(own)
    rule(own, PLAN, Standing.REJECTED)
    with open_storage(own) as storage:
        study = api.Study(storage.get_study(1))
    monkeypatch.setattr("torchwise.runtime.optimize.tune", lambda *_, **__: study)
    assert torchwise.optimize(NET, (X,), store=own).decision.plan == OTHER
    assert torchwise.optimize(NET, (X,)).decision.plan == PLAN
    assert not Path(store).exists()


def test_a_stale_decision_is_not_looked_up(store: str, caplog: pytest.LogCaptureFixture) -> None:
    rule(store, PLAN, Standing.REJECTED)
    fast = torchwise.apply(torch.nn.Linear(4, 5).eval(), DECISION)
    assert fast.decision == DECISION
    assert "stale" in caplog.text
    assert "bob" not in caplog.text


def test_the_store_is_looked_into_once_and_not_on_calls(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule(store, PLAN, Standing.APPROVED)
    looks = []
    real = read_storage
    monkeypatch.setattr("torchwise.store.read_storage", lambda url: looks.append(url) or real(url))
    fast = torchwise.apply(NET, DECISION)
    Path(store).unlink()
    for _ in range(3):
        answers(fast)
    assert (len(looks), fast.statistics.optimized) == (1, 3)


def test_a_store_that_is_not_there_or_holds_no_ruling_on_the_target_costs_no_import(tmp_path: Path) -> None:
    """Runs in a process of its own, where nothing else has loaded SQLAlchemy."""
    (tmp_path / "decision.json").write_text(DECISION.to_json())
    code = (
        "import os, sys\nfrom torchwise.records import Decision\n"
        "from torchwise.study.apply_approvals import EffectiveDecision, apply_stored_approvals\n"
        "decision = Decision.from_json(open('decision.json').read())\n"
        "os.environ['TORCHWISE_STORE'] = sys.argv[1]\n"
        "same = apply_stored_approvals(decision, strict=True) == EffectiveDecision(decision)\n"
        "print(same, 'sqlalchemy' in sys.modules, 'torch' in sys.modules)"
    )

    def run_code(store: Path) -> str:
        command = [sys.executable, "-c", code, str(store)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout

    missing, free = tmp_path / "folder" / "missing.db", tmp_path / "free.db"
    assert run_code(missing) == "True False False\n"
    assert not missing.parent.exists()
    store_study(str(free))
    with open_storage(str(free)) as storage:
        storage.store_approval(a_ruling(PLAN, target="app:factory"))
    assert run_code(free) == "True False False\n"
    rule(str(free), PLAN, Standing.APPROVED)
    assert run_code(free) == "True True False\n"


def test_a_store_of_an_older_schema_holds_no_rulings_and_is_not_migrated(store: str) -> None:
    open_storage(store).close()
    downgrade_storage(store, "0002")
    assert apply_stored_approvals(DECISION, strict=True).decision == DECISION
    assert read_storage(store) is None


@pytest.mark.parametrize("pinned", [False, True])
def test_approvals_hold_before_the_store_is_migrated(store: str, pinned: bool) -> None:
    """A program starts with a new version before anybody has opened the store to write."""
    store_study(store)
    rule(store, OTHER if pinned else PLAN, Standing.PINNED if pinned else Standing.REJECTED)
    downgrade_storage(store, "0004")
    fast = torchwise.apply(NET, DECISION, strict=True)
    answers(fast)
    assert fast.decision.plan == OTHER
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("SELECT version_num FROM torchwise_schema").fetchall() == [("0004",)]


def test_a_store_too_old_to_be_read_names_the_way_out(store: str, caplog: pytest.LogCaptureFixture) -> None:
    rule(store, PLAN, Standing.REJECTED)
    downgrade_storage(store, "0003")
    as_it_is(caplog, "has schema '0003', but must have '0005' to be read: torchwise store info migrates it")


def as_it_is(caplog: pytest.LogCaptureFixture, why: str, store: str | None = None) -> None:
    """Check that the decision holds with one warning, and that `strict` raises."""
    caplog.clear()
    fast = torchwise.apply(NET, DECISION, store=store)
    answers(fast)
    assert (fast.decision, fast.statistics.optimized) == (DECISION, 1)
    (said,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert "the decision holds, whatever was ruled" in said
    assert why in said
    with pytest.raises(StorageError, match=why):
        torchwise.apply(NET, DECISION, store=store, strict=True)


def test_a_store_that_cannot_be_read_holds_nothing_up(
    store: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    as_it_is(caplog, "does not exist", str(tmp_path / "missing.db"))
    as_it_is(caplog, "must be a path ending in .db", "redis://somewhere")
    (tmp_path / "broken.db").write_text("no database, but long enough to be looked at" * 99)
    as_it_is(caplog, "is no SQLite database", str(tmp_path / "broken.db"))
    rule(store, PLAN, Standing.REJECTED)
    with open_storage(store) as storage:
        storage._database.write(lambda c: c.exec_driver_sql("UPDATE torchwise_schema SET version_num = '9999'"))
    as_it_is(caplog, "has schema '9999', but must have")
    monkeypatch.setenv("TORCHWISE_STORE", NOWHERE)
    as_it_is(caplog, "cannot be reached")


def test_a_server_that_says_nothing_is_not_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchwise.store.storage.PROMPT_S", 2.0)  # the least that the driver knows
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        assert torchwise.apply(NET, DECISION, store=url).decision == DECISION
    assert time.monotonic() - start < 60, "it waits for minutes where a study goes on"
    assert "cannot be reached" in caplog.text


def test_rulings_on_a_server_are_heeded(postgres: PostgresServer) -> None:
    url = postgres.store()
    store_study(url)
    assert apply_stored_approvals(DECISION, url, strict=True).decision == DECISION
    rule(url, PLAN, Standing.REJECTED)
    assert apply_stored_approvals(DECISION, url, strict=True).decision.plan == OTHER


# In the background


def search_stored_study(store: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Message], list[Plan]]:
    """Search for NET, whose study is stored, with nothing prepared.

    Return the news, and the plans asked to be prepared.
    """
    prepared: list[Plan] = []
    with open_storage(store) as storage:
        study = storage.get_study(1)

    def return_study(*_: Any, caches: Caches) -> Study:
        made = Path(caches.new(PLAN))
        assert made.is_relative_to(Path(store).parent), "which the program deletes, should the search be killed"
        return study

    monkeypatch.setattr(search, "run_study", return_study)
    monkeypatch.setattr(
        search, "_compile_and_verify", lambda _request, _study, plan, *_: prepared.append(plan) or "not now"
    )
    told: list[Message] = []
    order = Order(Request(DECISION.workload), ("quick",), store, ())
    search.search(order, Path(store).parent, None, told.append)  # type: ignore[arg-type]
    return told, prepared


def test_what_is_not_permitted_is_not_prepared_in_the_background(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store_study(store)
    assert search_stored_study(store, monkeypatch)[1] == [PLAN, OTHER]
    rule(store, OTHER, Standing.APPROVED)
    assert search_stored_study(store, monkeypatch)[1] == [OTHER]
    rule(store, PLAN, Standing.REJECTED)
    assert search_stored_study(store, monkeypatch)[1] == [OTHER]
    rule(store, OTHER, Standing.REJECTED)
    told, prepared = search_stored_study(store, monkeypatch)
    assert prepared == []
    assert "bob rejected it" in told[-1].text
    rule(store, PLAN, Standing.PINNED)
    assert search_stored_study(store, monkeypatch)[1] == [PLAN]


def test_what_a_plan_becomes_in_the_background_is_not_rejected_either(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "adapt_to_aot", lambda plan, **_: OTHER if plan == PLAN else plan)
    store_study(store)
    rule(store, OTHER, Standing.REJECTED)
    assert search_stored_study(store, monkeypatch)[1] == []
