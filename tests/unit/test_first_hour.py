"""The first results that a user sees in Python: one line for each, and misspelt options refused with near ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import torchwise
from builders import a_study
from torchwise.bench import contenders
from torchwise.cli import app
from torchwise.cli.bench import CONTENDERS
from torchwise.cli.options import complete, complete_study, complete_target
from torchwise.records import Study
from torchwise.records.bisection import Symptom
from torchwise.records.scale import BatchFit, SizeTried
from torchwise.report.study import next_steps
from torchwise.runtime import api
from torchwise.store import open_storage
from torchwise.zoo.catalogue import SIZES


def test_a_decision_prints_as_its_reason() -> None:
    decision = a_study().decision
    assert decision is not None
    assert repr(decision) == f"<Decision for {decision.workload.target}: {decision.reason}>"


def test_a_batch_fit_prints_as_its_sizes() -> None:
    fit = BatchFit(
        "live:Net", torchwise.EAGER, (SizeTried(8, 100.0), SizeTried(16, 150.0), SizeTried(32, problem="oom"))
    )
    assert repr(fit) == "<BatchFit of live:Net under eager: largest 16, best 16>"


def test_optimize_ends_with_its_decision(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    study = api.Study(a_study())
    monkeypatch.setattr("torchwise.runtime.optimize.tune", lambda *_args, **_options: study)
    monkeypatch.setattr("torchwise.runtime.optimize.apply", lambda *_args, **_options: "fast")
    assert torchwise.optimize(torch.tanh, (torch.ones(1),)) == "fast"
    assert capsys.readouterr().err == f"torchwise: {study.decision.reason}\n"
    torchwise.optimize(torch.tanh, (torch.ones(1),), progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("background", [False, True])
def test_a_misspelt_option_is_refused_with_the_near_one(background: bool) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'effrt'; did you mean effort"):
        torchwise.optimize(torch.tanh, (torch.ones(1),), effrt="quick", background=background)  # type: ignore[call-overload]


def test_values_are_completed() -> None:
    assert complete("quick", "standard")("st") == ["standard"]
    assert "zoo:tutorial.fusion_demo" in complete_target("zoo:tut")
    assert ("latest", "decided last") in complete_study("la")


def complete_on_shell(words: str) -> list[str]:
    """Return what a shell offers for the last of some words."""
    typed = f"torchwise {words}"
    asked = {"_TORCHWISE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": f"{typed.count(' ')}"}
    return CliRunner().invoke(app, [], prog_name="torchwise", env=asked).output.split()


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Return a study in the default store."""
    monkeypatch.setenv("TORCHWISE_STORE", str(tmp_path / "store.db"))
    with open_storage(None) as storage:
        return storage.import_study(a_study())


def test_a_shell_completes_what_the_store_holds(stored: Study) -> None:
    number, target, trial = f"{stored.id}", stored.workload.target, stored.trials[0]
    for words in ("report ", "plans show ", "plans pin ", "analyze x --plan ", "tune x --plan "):
        assert {"latest", number} <= set(complete_on_shell(words)), words
    assert complete_on_shell("plans delete ") == [number]
    assert complete_on_shell("plans list --target ") == complete_on_shell("check ") == [target]
    assert trial.plan.id in complete_on_shell("plans pin latest ")
    assert complete_on_shell(f"plans reject {number} {trial.plan.id[:4]}") == [trial.plan.id]


def test_a_shell_completes_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHWISE_STORE", str(tmp_path / "none" / "store.db"))
    assert complete_on_shell("report ") == ["latest"]
    assert complete_on_shell("bisect x --plan reduce") == ["reduce-overhead"]
    assert complete_on_shell("plans pin latest ") == ["eager"]


def test_the_values_that_a_shell_completes_are_those_that_commands_take() -> None:
    built_in = [one.name for one in contenders.BUILT_IN]
    assert complete_on_shell("bench zoo --contenders ") == ["all", *contenders.load_contenders()]
    assert complete_on_shell("bench zoo --contenders eager,to") == ["eager,torch-tensorrt", "eager,torchwise"]
    assert built_in == [*CONTENDERS]
    assert complete_on_shell("bench zoo --size ") == [*SIZES]
    no_fault = (Symptom.NONE, Symptom.NOT_COMPARABLE)
    assert complete_on_shell("bisect x --symptom ") == [*(one for one in Symptom if one not in no_fault), "auto"]
    assert complete_on_shell("sweep x --launcher ") == ["process", "ray"]
    assert complete_on_shell("zoo tutorial.many") == ["tutorial.many_small_ops"]


BREAK = "Data-dependent branching, at model.py:7, in forward: `if x.sum() > 0:`"


def test_staying_with_eager_names_the_graph_break_and_the_command_that_lists_all() -> None:
    study = a_study()
    assert study.decision is not None
    trials = tuple(replace(trial, graph_break=BREAK if trial.number == 1 else "") for trial in study.trials)
    eager = replace(study, trials=trials, decision=replace(study.decision, plan=torchwise.EAGER, speedup=None))
    (step,) = [step for step in next_steps(eager) if step.command.startswith("torchwise explain")]
    assert "lists every graph break with its fix" in str(step)


def test_a_study_that_stays_with_eager_says_how_to_find_the_graph_break() -> None:
    study = a_study()
    assert study.decision is not None
    eager = replace(study, decision=replace(study.decision, plan=torchwise.EAGER, speedup=None))
    commands = [step.command for step in next_steps(eager)]
    assert any(command.startswith(f"torchwise explain {study.workload.target}") for command in commands)
    assert not any(step.command.startswith("torchwise explain") for step in next_steps(study))
