"""Whole runs with planted faults, in real processes: the right decision comes out, and nothing finished is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchwise.cli import main
from torchwise.plan import Plan
from torchwise.records import TrialState
from torchwise.store import open_storage

TARGETS = Path(__file__).parent.parent / "targets" / "misbehaving.py"
BRIEF_CLI = Path(__file__).parent.parent / "brief.py"
GOOD, BAD = Plan(threads=1), Plan(threads=3)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "2"}

pytestmark = pytest.mark.slow


def command(folder: Path, factory: str, *plans: Plan, **options: str) -> list[str]:
    flags = [flag for name, value in options.items() for flag in (f"--{name}", value)]
    chosen = [flag for plan in plans for flag in ("--plan", plan.to_json())]
    base = [sys.executable, str(BRIEF_CLI), "tune", f"{TARGETS}:{factory}", "--device", "cpu"]
    return [*base, "--effort", "quick", "--store", str(folder / "store.db"), *chosen, *flags]


def tune(folder: Path, factory: str, *plans: Plan) -> dict[str, Any]:
    done = subprocess.run(
        command(folder, factory, *plans, json=str(folder / "study.json")),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    study: dict[str, Any] = json.loads((folder / "study.json").read_text())
    return study


@pytest.mark.nightly
def test_each_planted_fault_ends_alone_and_the_good_plan_is_decided_for(tmp_path: Path) -> None:
    study = tune(tmp_path, "several", *(Plan(threads=n) for n in (3, 4, 5, 6)), GOOD)
    *bad, good = study["trials"]
    assert [trial["state"] for trial in bad] == ["complete", "complete", "fail", "fail"]
    for trial, word in zip(bad, ("off by", "finite", "SIGSEGV", "no answer on three threads"), strict=True):
        assert word in trial["reason"]
    assert good["state"] == "complete"
    assert study["decision"]["plan"]["threads"] == 1


def test_kill_9_at_any_moment_loses_no_finished_trial_and_the_same_command_goes_on(tmp_path: Path) -> None:
    plans = (GOOD, Plan(threads=4))
    process = subprocess.Popen(
        command(tmp_path, "wrong", *plans),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    finished = _wait_for_a_finished_trial(tmp_path)
    time.sleep(random.Random(20).uniform(0.0, 1.0))
    process.send_signal(signal.SIGKILL)
    process.wait()
    study = tune(tmp_path, "wrong", *plans)
    assert [trial["state"] for trial in study["trials"]].count("running") == 0
    assert len(study["trials"]) == len(plans)
    assert study["decision"]["plan"]["threads"] == 1
    final = _read_finished(tmp_path)
    for plan_id, trial in finished.items():
        assert final[plan_id] == trial


def _wait_for_a_finished_trial(folder: Path) -> dict[str, object]:
    deadline = time.monotonic() + 120
    while not (finished := _read_finished(folder)):
        assert time.monotonic() < deadline, "no trial ever ended"
        time.sleep(0.1)
    return finished


def _read_finished(folder: Path) -> dict[str, object]:
    if not (folder / "store.db").exists():
        return {}
    with open_storage(str(folder / "store.db")) as storage:
        studies = [storage.get_study(summary.id) for summary in storage.list_studies()]
    ended = [t for study in studies for t in study.trials if t.state is not TrialState.RUNNING]
    return {t.plan.id: replace(t, repeats=(), reason="", duel=None) for t in ended}  # more may be measured of it later


def test_ctrl_c_keeps_what_is_finished_and_returns_130(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "hangs", GOOD, BAD),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    _wait_for_a_finished_trial(tmp_path)
    time.sleep(1.0)  # the second candidate hangs by now
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "finished trials are saved" in said
    (kept,) = _read_finished(tmp_path).values()
    assert kept.plan == GOOD  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("no_such_module:make", 2, "no module or target scheme 'no_such_module'"),
        ("nothing", 2, "names no factory"),
        (f"{TARGETS}:nothing", 2, "has no 'nothing'"),
        (f"{TARGETS}:fail_in_factory", 2, "no weights here"),
        (f"{TARGETS}:refuses", 3, "the model raised RuntimeError"),
    ],
)
def test_bad_input_and_a_failing_model_have_exit_codes_of_their_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    code: int,
    said: str,
) -> None:
    line = ["torchwise", "tune", target, "--store", str(tmp_path / "s.db"), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert said in capsys.readouterr().err


@pytest.mark.nightly
def test_processes_tuning_into_one_file_lose_nothing(tmp_path: Path) -> None:
    """Two at once on one study: each plan is tried exactly once, by the process that claims it first."""
    plans = [GOOD, *(Plan(threads=n) for n in (4, 5))]
    running = [
        subprocess.Popen(
            command(tmp_path, "wrong", *plans),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        for _ in range(2)
    ]
    for process in running:
        _, said = process.communicate(timeout=250)
        assert process.returncode == 0, said
    with open_storage(str(tmp_path / "store.db")) as storage:
        (summary,) = storage.list_studies()
        study = storage.get_study(summary.id)
    assert sorted(t.plan.id for t in study.trials) == sorted(plan.id for plan in plans)
    assert [t.number for t in study.trials] == list(range(len(plans)))
    assert study.decision is not None
    assert study.decision.plan == GOOD
