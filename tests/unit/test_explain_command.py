"""The command and `explain`: the requests they refuse, the job of the worker, and the use of its answer."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from explain_samples import explanation, make_finding, price
from torchwise.cli.explain import explain as command
from torchwise.diagnose import explain as explaining
from torchwise.diagnose.explain import Inquiry, explain
from torchwise.errors import BudgetError, InputError, PlanError, TargetError, UnsupportedError
from torchwise.plan import Plan
from torchwise.records import Failure, FailureKind
from torchwise.trial import Limits

TARGET = "zoo:tutorial.fusion_demo"


class Told:
    """A launcher that keeps the inquiry and gives the answer it was made with."""

    def __init__(self, answer: str | Failure | None = None) -> None:
        self.inquiry: Inquiry | None = None
        self.limits: Limits | None = None
        self._answer = answer or explanation(make_finding(found=price(1e-6))).to_json()

    def run(self, job: Any, limits: Limits, on_stage: Callable[[str], None]) -> str | Failure:
        self.inquiry, self.limits = job, limits
        on_stage("compile")
        return self._answer


def test_a_live_model_is_sent_with_the_settings_of_this_process(tmp_path: Path) -> None:
    told, stages = Told(), list[str]()
    explain(torch.nn.Linear(2, 2), (torch.ones(1, 2),), launcher=told, artifacts=tmp_path / "a", on_stage=stages.append)
    assert told.inquiry is not None
    assert told.inquiry.plan is None
    assert told.inquiry.job.workload.target == "live:Linear"
    assert told.inquiry.job.settings is not None
    assert told.inquiry.job.cache_dir, "empty caches of its own, so that the stages are all there"
    assert (tmp_path / "a").is_dir()
    assert stages == ["compile"]


def test_the_command_and_python_show_their_progress_in_a_log_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explaining, "ProcessLauncher", Told)
    explain(TARGET, device="cpu")
    assert capsys.readouterr().err.split() == ["[", "0:00]", "compile"]
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [TARGET, "--device", "cpu", "--no-keep"])
    assert (done.exception, done.stderr.split()) == (None, ["[", "0:00]", "compile"])


def test_a_target_and_a_plan_are_told_as_they_are() -> None:
    told, plan = Told(), Plan(backend="inductor", shapes="dynamic")
    explain("model.py:factory", plan=plan, device="cpu", mode="training", launcher=told)
    assert told.inquiry is not None
    assert (told.inquiry.plan, told.inquiry.job.source) == (plan, None)
    assert told.inquiry.job.workload.mode == "training"


def test_a_worker_that_dies_is_an_answer_that_names_the_way_on() -> None:
    told = Told(Failure(FailureKind.DIED, "compile", "signal 11"))
    with pytest.raises(UnsupportedError, match="torchwise bisect"):
        explain("model.py:factory", device="cpu", launcher=told)


def test_a_budget_is_for_the_whole_command_with_the_fixes_in_it() -> None:
    told, begun = Told(), time.monotonic()
    explain("model.py:factory", device="cpu", budget=30.0, launcher=told)
    assert told.limits is not None
    assert told.inquiry is not None
    assert 0 < told.limits.end_s <= 30
    assert begun + 30 <= told.inquiry.end <= time.monotonic() + 30
    assert told.inquiry.fixes_s == 30


def test_without_a_budget_only_fixes_have_a_limit_and_they_can_be_left_out() -> None:
    told = Told()
    explain("model.py:factory", device="cpu", launcher=told)
    assert told.inquiry is not None
    assert (told.inquiry.fixes_s, told.inquiry.end) == (explaining.FIXES_S, math.inf)
    explain("model.py:factory", device="cpu", fixes=False, launcher=told)
    assert told.inquiry.fixes_s == 0


def test_a_budget_that_ends_before_the_run_is_measured_says_so() -> None:
    told = Told(Failure(FailureKind.INTERFERED, "load", "waited 9 s for another Torchwise process"))
    with pytest.raises(
        BudgetError, match=r"the budget of 9 s is spent, and model.py:factory is not explained: .*'load'"
    ):
        explain("model.py:factory", device="cpu", budget=9, launcher=told)


@pytest.mark.parametrize("budget", [-1, 0, float("nan")])
def test_a_budget_below_nothing_is_refused(budget: float) -> None:
    with pytest.raises(InputError, match="budget is"):
        explain("model.py:factory", device="cpu", budget=budget, launcher=Told())


def test_artifacts_that_cannot_be_written_are_refused_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = Told()
    with pytest.raises(InputError, match="this folder cannot be created"):
        explain("model.py:factory", device="cpu", artifacts=tmp_path / "file", launcher=told)
    assert told.inquiry is None


def run_command(*words: str) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    return CliRunner().invoke(app, words)


def test_the_command_shows_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setattr(explaining, "ProcessLauncher", lambda: told)
    result = run_command(
        "zoo:tutorial.fusion_demo", "--json", str(tmp_path / "x.json"), "--html", str(tmp_path / "x.html")
    )
    assert result.exit_code == 0, result.output
    assert "guards cost time" in result.output
    assert (tmp_path / "x.json").exists()
    assert (tmp_path / "x.html").exists()


def test_what_to_type_next_names_the_store_that_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, store, page = Told(), tmp_path / "s.db", tmp_path / "x.html"
    monkeypatch.setattr(explaining, "ProcessLauncher", lambda: told)
    result = run_command("zoo:tutorial.fusion_demo", "--store", str(store), "--html", str(page))
    assert f"--store{store}" in "".join(result.output.replace("\\\n", "").split())
    assert f"--store {store}" in page.read_text()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("nothing",), TargetError),
        (("zoo:tutorial.fusion_demo", "--plan", "{}"), PlanError),
        (("zoo:tutorial.fusion_demo", "--json", "/no/such/folder/x.json"), InputError),
    ],
)
def test_bad_input_is_refused_before_anything_runs(words: tuple[str, ...], error: type[Exception]) -> None:
    assert isinstance(run_command(*words).exception, error)


def test_asking_loads_no_torch() -> None:
    script = "import sys, torchwise.cli.explain, torchwise.report.explanation as r"
    script += "\nprint('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
