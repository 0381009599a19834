"""Decisions on a busy machine are judged by measurements on a quiet one."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import psutil
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def agreement(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("agreement")


def a_run(plan: str, answer: str, saved_s: float = 0.0, **speedups: float) -> dict[str, object]:
    told = {name: {"low": mid, "mid": mid, "high": mid} for name, mid in speedups.items()}
    return {"plan": plan, "answer": answer, "saved_s": saved_s, "speedups": told}


PAYS = [a_run("inductor", "yes", 9.0, inductor=1.7, capture=0.8)] * 3
LOSES = [a_run("eager", "no", 0.0, inductor=0.9)] * 3


@pytest.mark.parametrize(
    ("run", "quiet", "word"),
    [
        (a_run("inductor", "yes"), PAYS, "right"),
        (a_run("capture", "yes"), PAYS, "wrong"),
        (a_run("unheard of", "yes"), PAYS, "unknown: no quiet run timed unheard of"),
        (a_run("eager", "no"), PAYS, "wrong"),
        (a_run("eager", "inconclusive"), PAYS, "inconclusive"),
        (a_run("eager", "no"), LOSES, "right"),
        (a_run("inductor", "yes"), LOSES, "wrong"),
    ],
)
def test_a_decision_is_judged_by_quiet_runs(agreement: ModuleType, run: dict, quiet: list, word: str) -> None:
    assert agreement.judge(run, quiet) == word


def test_other_processes_compute_only_as_long_as_they_are_wanted(agreement: ModuleType) -> None:
    before = {child.pid for child in psutil.Process().children()}
    with agreement.computing(2):
        began = {child.pid for child in psutil.Process().children()} - before
        assert len(began) == 2
    assert not any(psutil.pid_exists(pid) for pid in began)
