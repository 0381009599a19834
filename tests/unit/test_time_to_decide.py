"""How soon a search is as good as trying everything: plans near the best are timed once more, in one process."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from sketches import a_trial, an_inspection

from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec, check_form
from torchwise.workload.target import find_factory

ONE, TWO, SLOW = Plan(threads=1), Plan(threads=2), Plan(threads=3)
STEP = """
import torch
import torchwise

def make():
    model = torch.nn.Linear(4, 4)
    step = torchwise.TrainStep(model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.01))
    return step, (torch.ones(2, 4), torch.zeros(2, 4))
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("time_to_decide")


def test_plans_beside_the_best_have_their_speeds_from_there(program: ModuleType) -> None:
    speeds = {EAGER: 1.0, ONE: 2.0, TWO: 1.9, SLOW: 1.5}
    assert program.once_more(speeds, {str(ONE): 1.0, str(TWO): 1.05}) == {ONE: 2.0, TWO: pytest.approx(2.1)}


def test_eager_stays_eager_where_it_is_near_the_best(program: ModuleType) -> None:
    speeds = {EAGER: 1.0, ONE: 1.04, TWO: 1.02}
    found = program.once_more(speeds, {str(ONE): 1.0, str(TWO): 1.01, str(EAGER): 0.99})
    assert found == {EAGER: 1.0, ONE: pytest.approx(1 / 0.99), TWO: pytest.approx(1.01 / 0.99)}


@pytest.mark.parametrize(
    ("target", "mode"),
    [("{}:make", "training"), ("zoo:tutorial.fusion_demo@small", "inference")],
    ids=["step", "model"],
)
def test_those_near_the_best_are_timed_as_a_trial_times_them(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str, mode: str
) -> None:
    file = tmp_path / "step.py"
    file.write_text(STEP)
    spec = WorkloadSpec(target.format(file), mode=mode)  # type: ignore[arg-type]
    trials = (a_trial(ONE, 2.0), a_trial(TWO, 1.95), a_trial(SLOW, 1.5))
    study = SimpleNamespace(trials=trials, workload=spec, inspection=an_inspection(), decision=None)
    monkeypatch.setattr(program, "load_study", lambda *_: study)
    monkeypatch.setattr(program, "FINALS", replace(program.FINALS, half_width=1.0, measure_s=0.01))
    program.finals(Namespace(stem=tmp_path / "found", target=spec.target, device="cpu"))
    found = json.loads((tmp_path / "found.finals.json").read_text())
    assert found["best"] == str(ONE)
    assert set(found["ratios"]) == {str(plan) for plan in (ONE, TWO, EAGER)}, "eager is what was decided for"
    assert found["ratios"][str(ONE)] == 1.0


def test_a_process_that_fails_is_told(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = program.Lane("", {0}, own=False)
    monkeypatch.setattr(
        program, "start_on", lambda _, command: SimpleNamespace(wait=lambda: int("--finals" in command))
    )
    assert program.run_again("--try-all", "2026-11-23", [lane])
    assert not program.run_again("--finals", "2026-11-23", [lane])


# ---- twelve programs


@pytest.fixture
def programs(program: ModuleType) -> ModuleType:
    assert program
    return importlib.import_module("decide_programs")


def write_curves(programs: ModuleType, options: Namespace, target: str, reached: float, decided: float) -> None:
    curves = {"search": [[0, 1.0], [5, 1.2], [reached, decided], [20, decided]], "everything": [[0, 1.0], [200, 2.0]]}
    found = {"best": 2.0, "decided": decided, "wall_s": 25 + reached, "curves": curves}
    programs.name_file(target, options).write_text(json.dumps(found))


def test_programs_that_are_done_are_not_measured_again_and_medians_are_told(
    programs: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Namespace(effort="quick", date="2026-11-28", label="x", out=tmp_path)
    write_curves(programs, options, "zoo:a", 10, 2.0)
    write_curves(programs, options, "file.py:b@n=1", 16, 1.98)
    measured = list[list[str]]()

    def run(command: list[str], **_: object) -> SimpleNamespace:
        measured.append(command)
        write_curves(programs, options, "zoo:c", 12, 1.5)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("subprocess.run", run)
    words = ["--label", "x", "--date", "2026-11-28", "--out", str(tmp_path), "--programs"]
    monkeypatch.setattr("sys.argv", ["decide_programs.py", *words, "zoo:a", "file.py:b@n=1", "zoo:c"])
    programs.main()
    assert [command[2] for command in measured] == ["zoo:c"]
    text = capsys.readouterr().out
    assert "| zoo:a | 35 s | 20 s | 200 s | 5 s | 10 s | 5% | 100.0% |" in text
    assert "| zoo:c | 37 s | 20 s | 200 s | 5 s | never | – | 75.0% |" in text
    assert "Medians of 3 programs: 37 s for a search, and near the best after 8% of the time of all plans." in text
    assert (tmp_path / "2026-11-28-x-decide-programs-quick.md").read_text() in text


def test_there_are_twelve_programs_and_all_of_them_exist(programs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert len(set(programs.PROGRAMS)) == 12
    for target in programs.PROGRAMS:
        check_form(target)
        assert target.startswith("hf:") or callable(find_factory(target))
