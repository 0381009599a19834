"""`torchwise analyze` and `torchwise.analyze`: requests reach the phases, and findings are shown and kept."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from analysis_samples import a_steady, an_analysis
from builders import a_decision, a_plan, a_study, a_trial
from torchwise.cli.analyze import LIMIT_S, analyze
from torchwise.diagnose import analyze as api
from torchwise.diagnose import analyze as phases
from torchwise.diagnose.requests import DEFAULT, plan_of
from torchwise.errors import InputError, PlanError, StorageError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.analysis import Analysis
from torchwise.records.files import write_json
from torchwise.store import ReportKind, open_storage

TARGET = "zoo:tutorial.fusion_demo@small"
app = typer.Typer()
app.command()(analyze)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have every analysis answered by a sample, and return the requests."""
    found: list[Any] = []

    def run(request: Any, launcher: Any, listener: Any) -> Analysis:
        listener.start_step("the plain model")
        listener.stage("load")
        found.append(request)
        return an_analysis()

    monkeypatch.setattr(phases, "run_analysis", run)
    monkeypatch.setattr(api, "run_analysis", run)
    return found


def run(*words: object) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


def test_every_option_reaches_the_phases(asked: list[Any], tmp_path: Path) -> None:
    options = ("--plan", "max-autotune", "--calls", 7, "--restarts", 3, "--batches", "1, 8", "--batch-dim", 1)
    more = ("--effort", "quick", "--mode", "training", "--objective", "throughput", "--device", "cpu", "--seed", 5)
    files = ("--json", tmp_path / "a.json", "--html", tmp_path / "a.html")
    result = run(TARGET, *options, *more, "--limit", 20, *files)
    assert result.exit_code == 0, result.output
    spec = WorkloadSpec(TARGET, "cpu", "training", "throughput", 7, 3, 5)
    assert asked == [phases.AnalyzeRequest(spec, a_plan(mode="max-autotune"), "quick", (1, 8), 1, 20.0)]
    assert "Use inductor: it saves" in " ".join(result.output.replace("│", " ").split())
    assert Analysis.from_json((tmp_path / "a.json").read_text()) == an_analysis()
    assert "</html>" in (tmp_path / "a.html").read_text()


def test_what_cannot_be_told_ends_with_4_and_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unsure, store = an_analysis(steady=a_steady(0.2)), str(tmp_path / "store.db")
    monkeypatch.setattr(phases, "run_analysis", lambda *_: unsure)
    assert run(TARGET, "--device", "cpu", "--no-keep", "--store", store).exit_code == 4
    assert not Path(store).exists()
    result = run(TARGET, "--device", "cpu", "--store", store)
    assert result.exit_code == 4
    with open_storage(store) as storage:
        (kept,) = storage.reports(ReportKind.ANALYSIS)
        assert storage.get_report(ReportKind.ANALYSIS, kept.id) == unsure
    assert "Inconclusive: the speed-up of inductor over eager, " in " ".join(result.output.replace("│", " ").split())


def test_what_is_not_said_is_as_documented(asked: list[Any]) -> None:
    assert run(TARGET, "--device", "cpu").exit_code == 0
    assert asked == [phases.AnalyzeRequest(WorkloadSpec(TARGET))]
    assert asked[0].plan == Plan(backend="inductor")
    assert LIMIT_S == phases.LIMIT_S


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--plan", "fastest"), "plan is 'fastest', but must be a plan's words"),
        (("--batches", "1,two"), "batch size is 'two', but must be a whole number"),
        (("--batches", "0"), "batch size is 0, but must be"),
        (("--json", "/nowhere/at/all.json"), "there is no folder /nowhere/at"),
        (("--calls", "0"), "calls is 0, but must be"),
        (("--device", "tpu"), "device is 'tpu', but must be one of cpu, cuda"),
        (("--effort", "much"), "effort is 'much', but must be one of"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(asked: list[Any], options: Any, message: str) -> None:
    result = run(TARGET, "--device", "cpu", *options)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert asked == []


def test_ctrl_c_leaves_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(phases, "run_analysis", raise_interrupt)
    assert run(TARGET, "--device", "cpu").exit_code == 130


def test_a_plan_is_meant_by_mode_json_itself_or_decision() -> None:
    assert plan_of(None) == DEFAULT
    assert plan_of("eager") == EAGER
    assert plan_of("reduce-overhead") == a_plan(mode="reduce-overhead")
    assert plan_of(a_plan(scope="regional").to_json()) == a_plan(scope="regional")
    assert plan_of(EAGER) == EAGER
    assert plan_of(a_decision(a_trial(0, a_plan(scope="regional")))) == a_plan(scope="regional")
    with pytest.raises(PlanError):
        plan_of("{}")


def test_a_stored_plan_is_meant_by_its_id_or_by_its_study(asked: list[Any], tmp_path: Path) -> None:
    store, other = f"{tmp_path}/s.db", a_study()
    assert other.decision is not None
    workload = replace(other.workload, target=TARGET)
    study = replace(other, workload=workload, decision=replace(other.decision, workload=workload))
    with open_storage(store) as storage:
        number = storage.import_study(study).id
    assert study.decision is not None
    plan = study.decision.plan
    write_json(study, tmp_path / "study.json")
    for name in (plan.id, number, "latest", tmp_path / "study.json"):
        assert run(TARGET, "--device", "cpu", "--store", store, "--plan", name).exit_code == 0
    assert [request.plan for request in asked] == [plan] * 4
    with pytest.raises(InputError, match="no decision in this store chose a plan with id 0123456789ab"):
        plan_of("0123456789ab", store)
    with pytest.raises(StorageError):
        plan_of("0123456789ab", str(tmp_path))


def test_a_study_without_a_decision_has_no_plan(asked: list[Any], tmp_path: Path) -> None:
    write_json(a_study(decided=None), tmp_path / "study.json")
    result = run(TARGET, "--device", "cpu", "--plan", tmp_path / "study.json")
    assert "has no decision yet" in str(result.exception)


def test_a_live_model_is_sent_with_its_settings_and_its_structure(asked: list[Any]) -> None:
    found = api.analyze(torch.nn.Linear(3, 2), (torch.ones(4, 3),), plan="eager", batches=[2], progress=False)
    (request,) = asked
    assert request.workload.target == "live:Linear"
    assert request.plan == EAGER
    assert request.batches == (2,)
    assert request.source is not None
    assert request.settings is not None
    assert request.structure is not None
    assert found.record == an_analysis()
    assert repr(found).startswith("<Analysis of inductor for zoo:vision.resnet50: Use inductor")


def test_an_analysis_in_python_saves_itself_and_shows_itself(asked: list[Any], tmp_path: Path) -> None:
    found = api.analyze(TARGET, progress=False)
    assert asked[0].source is None
    found.save_json(tmp_path / "a.json")
    found.save_html(tmp_path / "a.html")
    assert Analysis.from_json((tmp_path / "a.json").read_text()) == found.record
    assert (
        json.loads((tmp_path / "a.json").read_text())["schema"] == "torchwise.analysis/1" == found.to_dict()["schema"]
    )
    assert (tmp_path / "a.html").read_text() == found._repr_html_()
    assert found.__rich__() is not None
    assert found.advice == found.record.advice


def test_inputs_that_cannot_be_used_are_refused(asked: list[Any]) -> None:
    with pytest.raises(InputError, match="no example inputs are given"):
        api.analyze(torch.nn.Linear(3, 2))
    with pytest.raises(InputError, match="has its own inputs"):
        api.analyze(TARGET, (torch.ones(1),))
    assert asked == []


def test_the_command_loads_no_torch_before_it_runs() -> None:
    import subprocess

    code = "import sys, torchwise.cli.analyze, torchwise.records.analysis, torchwise.report.analysis; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_to_type_next_names_the_store_that_was_given(asked: list[Any], tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    result = run(TARGET, "--device", "cpu", "--store", store, "--html", tmp_path / "a.html")
    said = "".join(result.output.replace("\\\n", "").split())
    assert said.count(f"--store{store}") == 1
    assert (tmp_path / "a.html").read_text().count(f"--store {store}") >= 1
    assert "--store" not in run(TARGET, "--device", "cpu").output
