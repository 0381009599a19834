"""The first results that a user sees in Python: one line for each, and misspelt options refused with near ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import torchwise
from builders import a_study
from torchwise.cli.options import complete, complete_study, complete_target
from torchwise.records.scale import BatchFit, SizeTried
from torchwise.report.study import next_steps
from torchwise.runtime import api


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
