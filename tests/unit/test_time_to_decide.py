"""How soon a search is as good as trying everything: plans near the best are timed once more, in one process."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from sketches import CAPTURE, FAILED, a_trial, an_inspection

from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec, check_form
from torchwise.records import StudyState
from torchwise.workload.target import find_factory

ONE, TWO, SLOW = Plan(threads=1), Plan(threads=2), Plan(threads=3)
DEEP = Plan(backend="inductor", threads=2)
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


def test_the_first_faster_plan_has_its_time_from_the_begin_of_the_search(program: ModuleType) -> None:
    slow, wrong = (a_trial(ONE, 0.9, started_at=105.0, seconds=3), a_trial(TWO, 2.0, started_at=108.0, verdict=FAILED))
    fast, later = (a_trial(plan, 2.0, started_at=112.0 + n, seconds=4) for n, plan in enumerate((SLOW, CAPTURE)))
    speeds = {ONE: 0.9, TWO: 2.0, SLOW: 1.5, CAPTURE: 3.0}
    trials = [later, wrong, fast, slow]
    assert program.find_first_wall(trials, speeds, [100.0]) == 16.0
    assert program.find_first_wall(trials, speeds, [100.0, 120.0]) == 16.0, "it was continued afterwards"
    assert program.find_first_wall(trials, speeds, [100.0, 110.0]) is None, "nobody knows how long it stood still"
    assert program.find_first_wall([slow, wrong], speeds, [100.0]) is None
    assert program.find_first_wall(trials, speeds, []) is None, "begun by an earlier version"


def test_begins_of_a_search_are_kept_until_it_has_decided(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The first run ended in the inspection, before there was a study.
    states, searched = iter([[], [StudyState.INTERRUPTED], [StudyState.DECIDED]]), list[str]()

    @contextlib.contextmanager
    def open_store(_: str) -> Iterator[Any]:
        studies = [SimpleNamespace(state=state) for state in next(states)]
        yield SimpleNamespace(list_studies=lambda: studies)

    monkeypatch.setattr(program, "open_storage", open_store)
    monkeypatch.setattr(
        program, "tune", lambda options, store: searched.append(program.path_of(options, store).touch())
    )
    monkeypatch.setattr(program, "run_again", lambda *_: True)
    begins = list[list[float]]()
    monkeypatch.setattr(program, "report", lambda options: begins.append(program.read_begins(options)))
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    words = ["zoo:a", "--date", "2026-11-29", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["time_to_decide.py", *words])
    for _ in range(4):
        program.main()
    assert (len(searched), [len(each) for each in begins]) == (3, [1, 2, 3, 3])


def test_the_report_has_what_a_table_of_programs_needs(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials = (a_trial(ONE, 2.0, started_at=1010.0, seconds=5),)
    environment = SimpleNamespace(gpu=None, cpu="a CPU", torch="2.13")
    study = SimpleNamespace(
        trials=trials, decision=None, seconds=30.0, environment=environment, workload=WorkloadSpec("zoo:a")
    )
    monkeypatch.setattr(program, "load_study", lambda *_: study)
    monkeypatch.setattr(program, "space_of", lambda *_: [ONE, TWO])
    monkeypatch.setattr(program, "draw", lambda *_: None)
    stem = tmp_path / "found"
    options = Namespace(stem=stem, target="zoo:a", date="2026-11-29", effort="quick", space=None, choices=None)
    program.path_of(options, "finals", "json").write_text(json.dumps({"best": str(ONE), "ratios": {str(ONE): 1.0}}))
    program.path_of(options, "begun", "json").write_text("[1000.0]")
    assert "a verified plan faster than eager 15 s after the search began, profile included" in program.report(options)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["first_wall_s"], found["unfinished"]) == (15.0, 1)


@pytest.mark.parametrize(
    ("space", "most", "expected"),
    [(None, None, {ONE, TWO, DEEP}), ("thorough", 1, {ONE, TWO, SLOW}), ("thorough", 0, {TWO}), (None, 1, {ONE, TWO})],
)
def test_everything_is_the_plans_of_an_effort_and_those_of_the_search(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, space: str | None, most: int | None, expected: set[Plan]
) -> None:
    plans = {None: [ONE, DEEP], "thorough": [ONE, SLOW, DEEP]}
    monkeypatch.setattr(program, "space_of", lambda _, effort: plans[effort])
    search = SimpleNamespace(trials=(a_trial(EAGER, 1.0), a_trial(TWO, 2.0)))
    found = program.plans_to_try(Namespace(space=space, choices=most), search)
    assert set(found) == expected
    assert len(found) == len(expected)


def test_the_space_of_another_effort_is_larger(program: ModuleType) -> None:
    study = SimpleNamespace(
        trials=(), workload=WorkloadSpec("zoo:a"), inspection=an_inspection(), allow="same-precision", effort="quick"
    )
    own, all_of_them = program.space_of(study, None), program.space_of(study, "thorough")
    assert set(own) == set(program.space_of(study, "quick")) < set(all_of_them)


# ---- twelve programs


@pytest.fixture
def programs(program: ModuleType) -> ModuleType:
    assert program
    return importlib.import_module("decide_programs")


def write_curves(
    programs: ModuleType, options: Namespace, target: str, reached: float, decided: float, **more: Any
) -> None:
    curves = {"search": [[0, 1.0], [5, 1.2], [reached, decided], [20, decided]], "everything": [[0, 1.0], [200, 2.0]]}
    found = {"best": 2.0, "decided": decided, "wall_s": 25 + reached, "curves": curves, **more}
    programs.name_file(target, options).write_text(json.dumps(found))


def test_programs_that_are_done_are_not_measured_again_and_medians_are_told(
    programs: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Namespace(effort="quick", space="thorough", date="2026-11-28", label="x", out=tmp_path)
    write_curves(programs, options, "zoo:a", 10, 2.0)
    write_curves(programs, options, "file.py:b@n=1", 16, 1.98)
    measured = list[list[str]]()

    def run(command: list[str], **_: object) -> SimpleNamespace:
        measured.append(command)
        write_curves(programs, options, "zoo:c", 12, 1.5, first_wall_s=9.0, unfinished=0)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("subprocess.run", run)
    words = ["--label", "x", "--date", "2026-11-28", "--out", str(tmp_path), "--programs"]
    monkeypatch.setattr("sys.argv", ["decide_programs.py", *words, "zoo:a", "file.py:b@n=1", "zoo:c"])
    programs.main()
    assert [command[2] for command in measured] == ["zoo:c"]
    text = capsys.readouterr().out
    assert "| zoo:a | 35 s | 20 s | 200 s | 5 s | – | 10 s | 5% | 100.0% |" in text, "an earlier version wrote it"
    assert "| zoo:c | 37 s | 20 s | 200 s | 5 s | 9 s | never | – | 75.0% |" in text
    assert "A faster plan is there 9 s after the begin, profile included (median of 1)." in text
    assert "Medians of 3 programs: 37 s for a search, and near the best after 8% of the time of all plans." in text
    assert (tmp_path / "2026-11-28-x-decide-programs-quick-of-thorough.md").read_text() in text


def test_a_program_goes_on_while_plans_are_left_to_try(
    programs: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = Namespace(effort="quick", space="thorough", date="2026-11-29", label="x", out=tmp_path)
    write_curves(programs, options, "zoo:a", 10, 2.0, unfinished=3)
    write_curves(programs, options, "zoo:b", 10, 2.0, unfinished=0)
    measured = list[list[str]]()
    monkeypatch.setattr(
        "subprocess.run", lambda command, **_: measured.append(command) or SimpleNamespace(returncode=0)
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    words = ["--label", "x", "--date", "2026-11-29", "--out", str(tmp_path), "--device", "cuda", "--beside", "4"]
    monkeypatch.setattr("sys.argv", ["decide_programs.py", *words, "--seconds", "60", "--programs", "zoo:a", "zoo:b"])
    with pytest.raises(SystemExit) as exited:
        programs.main()
    assert exited.value.code == 75, "there is more to do"
    [command] = measured
    given = dict(itertools.pairwise(command))
    assert command[2] == "zoo:a"
    assert (given["--device"], given["--gpus"], given["--beside"]) == ("cuda", "5", "4")
    assert 0 < float(given["--budget"]) <= 60, "not those of a program, as fewer are left"


def test_there_are_twelve_programs_and_eight_for_a_gpu_and_all_of_them_exist(
    programs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert (len(set(programs.PROGRAMS)), len(set(programs.GPU_PROGRAMS))) == (12, 8)
    for target in (*programs.PROGRAMS, *programs.GPU_PROGRAMS):
        check_form(target)
        assert target.startswith("hf:") or callable(find_factory(target))


def test_the_shipped_order_was_learned_from_four_of_the_twelve_and_from_none_for_a_gpu(programs: ModuleType) -> None:
    learned = {target.partition("@")[0] for target in importlib.import_module("learn_gains").PROGRAMS}
    assert {target.partition("@")[0] for target in programs.PROGRAMS} & learned == {
        *("zoo:tutorial.many_small_ops", "zoo:ivhl.field_superposition", "zoo:spinlock.operator"),
        "zoo:energy_flow.neuron",
    }
    assert not {target.partition("@")[0] for target in programs.GPU_PROGRAMS} & learned


def test_neither_part_finds_code_that_the_other_compiled(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    seen: dict[str, list[str]] = {}

    def note(part: str) -> bool:
        seen[part] = [os.environ[name] for name in names]
        return True

    for name in names:
        monkeypatch.setenv(name, "full")
    monkeypatch.setattr(program, "has_decided", lambda _: False)
    monkeypatch.setattr(program, "note_begin", lambda _: None)
    monkeypatch.setattr(program, "tune", lambda _, store: note(store))
    monkeypatch.setattr(program, "run_again", lambda part, *_: note(part))
    program.run_parts(Namespace(date="2026-12-01", budget=9.0), [], tmp_path)
    assert len({"full", *seen["search"], *seen["--try-all"]}) == 5
