"""Real runs, from the model to the explanation: a graph break, found at its place, with its potential saving."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from brief import make_brief
from consistency import check_explanation
from torchwise.diagnose import explain as explaining
from torchwise.diagnose.evidence import CAPTURE, EXECUTION, GENERATION
from torchwise.diagnose.explain import explain
from torchwise.errors import BaselineError, InputError, PlanError, UnsupportedError
from torchwise.plan import EAGER
from torchwise.records import Failure, FailureKind
from torchwise.records.answer import Answer, Reliability
from torchwise.records.explanation import Explanation
from torchwise.report.explanation import render_explanation, render_explanation_html
from torchwise.trial import Limits
from torchwise.trial.launcher import OnStage
from torchwise.trial.worker import Assignment


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time briefly, and no fix but the first: the savings here are many times the noise."""
    monkeypatch.setattr(explaining, "EFFORT", make_brief(explaining.EFFORT))
    monkeypatch.setattr(explaining, "FIXES_S", 1.0)


def check(told: Explanation) -> None:
    """Check the output against the record, however busy the machine was."""
    assert Explanation.from_json(told.to_json()) == told
    out = StringIO()
    Console(file=out, width=200, no_color=True).print(render_explanation(told))
    check_explanation(told, out.getvalue(), render_explanation_html(told))


def is_quiet(told: Explanation) -> bool:
    return told.trust is not None and told.trust.reliability is Reliability.GOOD


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.mean() > 0:  # here
            x = x * 2
        return x.cos()


@pytest.mark.slow
def test_a_break_is_found_with_its_place_and_price(tmp_path: Path) -> None:
    told = explain(Branching(), (torch.ones(64),), artifacts=tmp_path)
    check(told)
    (found,) = [one for one in told.findings if one.kind == "graph break"]
    assert found.places[0].file == __file__
    assert "# here" in found.places[0].excerpt
    assert found.saving is not None, told.notes
    assert found.saving.per_call_s.low > 0 or not is_quiet(told)
    stages = {stage.name: stage for stage in told.stages}
    assert len(stages) == 6
    assert stages[CAPTURE].came_out.startswith("2 graphs")
    assert stages[EXECUTION].came_out.startswith("2 compiled graphs")
    assert all((tmp_path / name).read_text() for stage in told.stages for name in stage.artifacts)
    assert any(name.startswith("kernels-") for name in stages[GENERATION].artifacts)
    assert any(kernel.generated and kernel.nbytes for kernel in told.kernels)
    assert told.capturable.answer is False


class Counting(nn.Module):
    """Counts its calls, and would be several times as fast compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for _ in range(5):
            x = torch.relu(x * 1.01 + 0.1) - x * 0.5
        return x


@pytest.mark.slow
@pytest.mark.nightly
def test_what_is_given_up_comes_first_with_a_fix_that_was_seen_to_help() -> None:
    told = explain(Counting(), (torch.ones(512, 512),))
    check(told)
    (found,) = [one for one in told.findings if one.kind == "recompile"]
    assert "PyTorch now runs it in eager on every call" in found.title
    assert "dynamic=True" not in found.fix
    assert found.saving is not None
    if is_quiet(told):
        assert told.findings[0] is found
        assert found.saving.answer is Answer.YES
        # A small part of a call is left under the fix.
        assert found.saving.per_call_s.mid > told.measurement.candidate_time.mid / 4
        assert "allow_unspec_int_on_nn_module = True" in found.fix
        assert found.tried[0].helps
    assert any("not measured, because the budget was spent" in note for note in told.notes)


class Layers(nn.Module):
    """A convolution, an RNN and a transformer's layer, which PyTorch runs as one operator each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(16, 32, 3, padding=1)
        self.rnn = nn.LSTM(32, 32, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.encoder(self.rnn(self.conv(x).mT)[0])
        return y


@pytest.mark.slow
def test_operators_that_are_made_of_others_have_their_flops() -> None:
    told = explain(Layers().eval(), (torch.randn(4, 16, 64),), plan=EAGER, fixes=False)
    check(told)
    flops = {kernel.name: kernel.flops for kernel in told.kernels if kernel.flops}
    assert {"aten::conv1d", "aten::lstm", "aten::_transformer_encoder_layer_fwd"} <= flops.keys()
    assert flops["aten::lstm"] == 2 * 4 * 64 * 4 * 32 * 64


def test_a_plan_must_be_one() -> None:
    with pytest.raises(PlanError, match="plan is 'nosuch', but must be a Plan"):
        explain(nn.Linear(2, 2), (torch.ones(1, 2),), plan="nosuch")  # type: ignore[arg-type]


def test_a_model_that_raises_is_the_baselines_error() -> None:
    with pytest.raises(BaselineError, match="the model raised"):
        explain(nn.Linear(2, 2), (torch.ones(3),))


class Refusing:
    """A launcher that runs nothing, and keeps the limits of each job."""

    def __init__(self) -> None:
        self.limits: list[Limits] = []

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> Failure:
        self.limits.append(limits)
        return Failure(FailureKind.DIED, "start", "not run")


@pytest.mark.parametrize(("budget", "at_least"), [(None, 900.0), (60.0, 50.0), (5000.0, 4900.0)])
def test_a_budget_alone_ends_the_worker(budget: float | None, at_least: float) -> None:
    launcher = Refusing()
    with pytest.raises(UnsupportedError, match="not run"):
        explain(nn.Linear(2, 2), (torch.ones(1, 2),), budget=budget, launcher=launcher)
    assert at_least <= launcher.limits[0].time_s <= (budget or at_least)


def test_a_budget_of_nothing_is_refused_with_the_way_to_measure_no_fix() -> None:
    with pytest.raises(InputError, match=r"budget is 0 s, but must be above 0\. --no-fixes, or fixes=False"):
        explain(nn.Linear(2, 2), (torch.ones(1, 2),), budget=0)
