"""A plan step by step: its steps, their gains, and the command that shows and measures them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import a_space, reachable
from typer.testing import CliRunner

import torchwise
from brief import BRIEF
from builders import PASSED, WRONG, a_study, a_trial
from torchwise.cli import app
from torchwise.errors import InputError
from torchwise.plan import EAGER, Numerics, Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.rules import iter_changes
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check, CheckName, Interval, Outcome, Study, StudyState, Trial, TrialState, Verdict
from torchwise.records import format as show
from torchwise.records.files import write_json
from torchwise.records.steps import list_plans, list_steps
from torchwise.report.markdown import render_markdown
from torchwise.report.steps import make_steps_table, steps_document, steps_section
from torchwise.report.study import render_html
from torchwise.runtime.api import Study as ShownStudy
from torchwise.store import open_storage

PLAN = Plan(backend="inductor", mode="reduce-overhead", precision="tf32", memory_format="channels_last")
FIRST, SECOND, THIRD, _ = list_plans(PLAN)


def study_of(*trials: Trial, **changes: Any) -> Study:
    return a_study(trials, **{"decided": 9, **changes})


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "160"})


# ---- the steps


def test_a_plan_is_built_up_from_eager_numbers_first_and_compiled_last() -> None:
    steps = list_steps(study_of(a_trial(9, PLAN)))
    assert [step.change for step in steps] == ["tf32", "channels_last", "inductor", "inductor reduce-overhead"]
    assert steps[-1].plan == PLAN
    assert [len(list(iter_changes(step.plan))) for step in steps] == [1, 2, 3, 4]
    assert [str(one) for one in list_plans(Plan(backend="inductor", threads=2))] == [
        "eager + 2 threads",
        "inductor + 2 threads",
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_last_step_of_every_plan_is_the_plan(device: str) -> None:
    plans = sorted(reachable(a_space(device)), key=str)
    assert len(plans) > 20
    for plan in plans:
        found = list(list_plans(plan))
        assert found[-1:] == ([] if plan.is_eager else [plan])
        numbers = [len(list(iter_changes(step))) for step in found]
        assert numbers == sorted(set(numbers)), plan
        assert all(step.change for step in list_steps(study_of(a_trial(9, plan)), plan)), plan


def test_changes_that_only_go_together_are_one_step() -> None:
    plan = Plan(backend="inductor", scope="regional", shapes="dynamic")
    assert [str(step) for step in list_plans(plan)][-1] == str(plan)
    lone = Plan(backend="inductor", options=(("freezing", True),))
    assert [step.change for step in list_steps(study_of(a_trial(9, lone)))] == ["inductor", "freezing"]


def test_a_gain_is_over_the_step_before_and_spans_both_intervals() -> None:
    first, second = a_trial(0, FIRST, 1.5), a_trial(1, SECOND, 3.0)
    steps = list_steps(study_of(first, second, a_trial(9, PLAN)))
    one, two = first.speedup, second.speedup
    assert one is not None
    assert two is not None
    assert steps[0].gain == steps[0].speedup == one
    assert steps[1].gain == Interval(two.low / one.high, two.mid / one.mid, two.high / one.low)
    assert (steps[2].trial, steps[2].gain, steps[3].gain) == (None, None, None)


def test_a_step_without_a_certain_speed_is_missing() -> None:
    pruned = a_trial(1, SECOND, 0.9, state=TrialState.PRUNED)
    failed = a_trial(2, THIRD, None, verdict=WRONG)
    waiting = a_trial(9, PLAN, None, state=TrialState.WAITING)
    steps = list_steps(study_of(a_trial(0, FIRST), pruned, failed, waiting, decided=None), PLAN)
    assert [step.is_missing for step in steps] == [False, True, False, True]
    assert list_steps(study_of(), PLAN)[0].is_missing
    assert list_steps(study_of(decided=None)) == list_steps(study_of(), EAGER) == ()


# ---- reports

RULE = Check(CheckName.SUBSTITUTION, Outcome.PASS, "judged by the distribution of outputs: no difference")
NOISE = Check(CheckName.INDEPENDENCE, Outcome.PASS, "successive calls vary as eager's do")
WHOLE = (
    a_trial(0, FIRST, 1.5),
    a_trial(1, SECOND, 1.2),
    a_trial(2, THIRD, None, verdict=WRONG),
    a_trial(9, PLAN, 3.0, verdict=Verdict((RULE, *PASSED.checks, NOISE))),
)


def test_a_report_has_each_step_its_gain_and_the_rules_of_the_verdict() -> None:
    steps = list_steps(study_of(*WHOLE))
    rows = make_steps_table(steps).lines
    assert [row[0] for row in rows] == [
        "eager",
        "+ tf32",
        "+ channels_last",
        "+ inductor",
        "+ inductor reduce-overhead",
    ]
    assert [row[4] for row in rows] == ["reference", "passed", "passed", "failed", "passed"]
    assert rows[2][1:3] == (show.speedup(steps[1].speedup), show.speedup(steps[1].gain))
    assert rows[4][2] == "–", "the step before has no speed"
    text = render_markdown(steps_document(study_of(*WHOLE), PLAN))
    assert "- substitution: pass. judged by the distribution of outputs: no difference" in text
    assert "- independence: pass. successive calls vary as eager's do" in text
    assert "held outputs" not in text
    assert "--measure" not in text, "nothing is missing"


def test_missing_steps_are_named_with_the_command_that_measures_them() -> None:
    study = study_of(a_trial(0, FIRST, 1.5), a_trial(1, SECOND, 0.9, state=TrialState.PRUNED), a_trial(9, PLAN, 3.0))
    rows = make_steps_table(list_steps(study)).lines
    assert [row[4] for row in rows][2:4] == ["passed, stopped early", "not tried"]
    text = render_markdown(steps_document(study, PLAN, store="runs.db"))
    assert "measures 2 steps that the study lacks" in text
    assert "torchwise report 7 --steps --measure --store runs.db" in text
    other = render_markdown(steps_document(study, SECOND))
    assert "torchwise report 7 --steps --measure --plan 'eager + tf32 + channels_last'" in other
    live = render_markdown(steps_document(study_of(*study.trials, workload=WorkloadSpec("live:Net")), PLAN))
    assert "plans=[step.plan for step in study.steps()]" in live


def test_a_page_has_the_steps_if_all_were_measured() -> None:
    assert "Step by step" in render_html(study_of(*WHOLE))
    assert not steps_section(study_of(*WHOLE[:2], WHOLE[-1])), "one is missing"
    assert not steps_section(study_of(a_trial(9, FIRST))), "one step is the plan itself"
    assert not steps_section(study_of(*WHOLE, decided=4)), "eager stays"


def test_python_has_the_steps_too() -> None:
    shown = ShownStudy(study_of(*WHOLE))
    assert shown.steps() == list_steps(shown.record)
    assert [step.plan for step in shown.steps(SECOND)] == [FIRST, SECOND]


# ---- the command


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(write_json(study_of(*WHOLE), tmp_path / "study.json"))


def test_a_command_shows_the_steps_and_writes_them(file: str, tmp_path: Path) -> None:
    done = run("report", file, "--steps", "--json", str(tmp_path / "steps.json"), "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    assert "+ channels_last" in done.output
    assert "Candidates" not in done.output
    written = json.loads((tmp_path / "steps.json").read_text())
    assert written["schema"] == "torchwise.steps/1"
    assert written["plan_id"] == PLAN.id
    assert [step["change"] for step in written["steps"]][:2] == ["tf32", "channels_last"]
    assert [step["trial"] for step in written["steps"]] == [0, 1, 2, 9]
    assert written["steps"][1]["gain"]["mid"] == pytest.approx(0.8, rel=0.05)
    assert written["steps"][2]["outcome"] == "fail"
    assert "Step by step" in (tmp_path / "page.html").read_text()
    chosen = run("report", file, "--steps", "--plan", str(SECOND))
    assert "2 steps from eager" in chosen.output


@pytest.mark.parametrize(
    ("decided", "words", "said"),
    [
        (9, ["--measure"], "--measure is given without --steps"),
        (9, ["--plan", "inductor"], "--plan is given without --steps"),
        (9, ["--budget", "3"], "--budget is given without --steps"),
        (None, ["--steps"], "has no decision yet: name a plan with --plan"),
        (9, ["--steps", "--measure"], "which no command can load"),
        (9, ["--steps", "--budget", "3"], "--budget is 3 s, but without --measure nothing is measured"),
    ],
)
def test_what_has_no_steps_is_refused(decided: int | None, words: list[str], said: str, tmp_path: Path) -> None:
    live = WorkloadSpec("live:Net", device="cuda")
    file = write_json(study_of(*WHOLE, decided=decided, workload=live), tmp_path / "study.json")
    done = run("report", str(file), *words)
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


def test_eager_has_no_steps(tmp_path: Path) -> None:
    file = write_json(study_of(*WHOLE, decided=4), tmp_path / "study.json")
    done = run("report", str(file), "--steps", "--measure")
    assert done.exit_code == 0
    assert "The plan is eager, which has no steps. Name another plan with --plan PLAN." in done.output


def test_plans_that_were_verified_before_stay_in_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, wrong = Plan(backend="inductor"), Plan(precision="bf16")
    study = study_of(a_trial(1, other), a_trial(2, wrong, verdict=WRONG), decided=None, allow=Numerics.LOWER_PRECISION)
    asked: list[Any] = []
    command = importlib.import_module("torchwise.cli.tune")  # the package has the function under that name
    monkeypatch.setattr(command, "search_study", lambda request, *_: (asked.append(request.plans), (study,))[1])
    done = run("report", str(write_json(study, tmp_path / "study.json")), "--steps", "--plan", str(SECOND), "--measure")
    assert done.exit_code == 0, done.output
    assert asked == [(FIRST, SECOND, other)]


@pytest.mark.slow
def test_missing_steps_are_measured_and_join_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", BRIEF)
    model = tmp_path / "tiny_model.py"
    model.write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval(), (torch.randn(16, 8),)\n"
    )
    plan, store = Plan(backend="inductor", transforms=("tanh_gelu",)), str(tmp_path / "runs.db")
    asked: dict[str, Any] = {"effort": "quick", "allow": "substituted", "tolerance": 0.01, "store": store}
    study = torchwise.tune(f"{model}:make", plans=[plan], device="cpu", progress=False, **asked)
    assert [step.is_missing for step in study.steps(plan)] == [True, False]
    words = ("report", str(study.record.id), "--steps", "--plan", str(plan), "--store", store)
    assert "not tried" in run(*words).output
    left_out = "tf32: the search left it out"
    with open_storage(store, existing=True) as storage:
        storage.store_outcome(
            study.record.id, state=StudyState.DECIDED, decision=None, excluded=[left_out], seconds=0.0
        )
    done = run(*words, "--measure", "--json", str(tmp_path / "steps.json"))
    assert done.exit_code == 0, done.output
    steps = json.loads((tmp_path / "steps.json").read_text())["steps"]
    assert [step["change"] for step in steps] == ["tanh_gelu", "inductor"]
    assert [step["outcome"] for step in steps] == ["pass", "pass"]
    assert all(step["speedup"] and step["gain"] for step in steps)
    with open_storage(store, existing=True) as storage:
        stored = storage.get_study(study.record.id)
    assert len(stored.trials) == 2
    assert stored.excluded == (left_out,), "named plans say nothing about other choices"
    assert not any(step.is_missing for step in list_steps(stored, plan))
    assert "measures" not in run(*words).output
