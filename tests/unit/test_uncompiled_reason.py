"""Why nothing was compiled: the reason, and its line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from torchwise.compile.uncompiled_reason import find_graph_break, why_uncompiled
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Measurement
from torchwise.trial import Job, experiment
from torchwise.trial.experiment import PlanCandidate, PlanExperiment
from torchwise.workload import Example
from torchwise.workload.train_step import TrainStep

X = torch.ones(4, 4)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def halve_until_small(x: torch.Tensor) -> torch.Tensor:
    while x.norm() > 1.0:
        x = x * 0.5
    return x


def print_sums(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x.sin()
        print(x.sum())
    return x


def sum_rows(x: torch.Tensor) -> list[float]:
    total = 0.0
    for row in x:
        total += row.sum().item()
        if total > 5:
            break
    return [total]


def double_rows(x: torch.Tensor) -> list[Any]:
    return [2 * row for row in x.tolist()]


class Sparse(nn.Module):
    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CSR is in beta, says PyTorch
            self.register_buffer("matrix", torch.eye(4).to_sparse(layout=layout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.matrix, x)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (halve_until_small, "while x.norm() > 1.0:"),
        (print_sums, "print(x.sum())"),
        (sum_rows, "total"),
        (double_rows, "row in x.tolist()"),
        (Sparse(torch.sparse_coo), "torch.sparse.mm(self.matrix, x)"),
        (Sparse(torch.sparse_csr), "torch.sparse.mm(self.matrix, x)"),
    ],
    ids=["while", "print in a loop", "item in a loop", "tolist", "COO", "CSR"],
)
def test_the_line_is_named(call: Callable[..., Any], line: str) -> None:
    torch.compile(call, backend="eager")(X)  # PyTorch then remembers to leave it alone
    said = why_uncompiled(call, Example((X,)))
    assert f"{__file__}:" in said
    assert line in said
    assert "\n" not in said
    assert find_graph_break(call, Example((X,))) == said


@pytest.mark.parametrize(
    "call",
    [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.sin],
    ids=["a layer", "layers", "a function"],
)
def test_what_is_one_graph_has_no_break(call: Callable[..., Any]) -> None:
    assert find_graph_break(call, Example((X,))) == ""


class Counting(nn.Module):
    """Counts its calls, and takes one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


def raise_after_tracing(*_: Any, **__: Any) -> Any:
    raise MemoryError("too little of it")


def test_an_error_that_is_not_pytorchs_is_no_graph_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: raise_after_tracing)
    assert find_graph_break(torch.sin, Example((X,))) == ""


def test_the_model_is_left_in_its_state() -> None:
    model = Counting()
    assert find_graph_break(model, Example((X,))) == ""
    assert model.calls == 0


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        return y * 2 if y.sum() > 0 else y


def make_branching() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Branching(), (X,)


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(("seconds", "named"), [(1.0, True), (0.5, False)])
def test_a_trial_names_the_break_of_a_plan_that_is_not_faster(seconds: float, named: bool) -> None:
    spec = WorkloadSpec(f"{__file__}:make_branching")
    job = Job("try", spec, Plan(backend="counting"), effort=EFFORTS["quick"])
    tried = PlanExperiment(job, PlanCandidate(job.plan))
    tried.build()
    tried.first_calls()
    found = tried.find_graph_break(Measurement((seconds,) * 9, (1.0,) * 9))
    assert (f"{__file__}:" in found, "`return y * 2 if y.sum() > 0 else y`" in found) == (named, named)


@pytest.mark.usefixtures("graphs")
def test_a_warm_start_pays_for_the_code_of_other_values_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "compile_for_other_values", lambda *_: 1000.0)
    job = Job("try", WorkloadSpec(f"{__file__}:make_branching"), Plan(backend="counting"), effort=EFFORTS["quick"])
    tried = PlanExperiment(job, PlanCandidate(job.plan))
    assert tried.restart(lambda _: None, lambda: Measurement((1.0,) * 9, (1.0,) * 9)).warm_s > 1000.0


def test_of_a_training_step_the_model_s_line_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Sparse(torch.sparse_csr))
    step = TrainStep(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    said = why_uncompiled(step, Example((X, X)))
    assert f"{__file__}:" in said
    assert "torch.sparse.mm(self.matrix, x)" in said


class Disabled(nn.Module):
    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def yield_plus_one(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x + 1


def test_without_a_line_the_reason_is_given() -> None:
    assert "torch.compiler.disable" in why_uncompiled(Disabled(), Example((X,)))
    assert "Generators cannot be compiled" in why_uncompiled(yield_plus_one, Example((X,)))
    assert "no operator" in why_uncompiled(lambda x: x, Example((X,)))


def test_an_rnn_is_named() -> None:
    steps = Example((torch.ones(2, 3, 4),))
    assert why_uncompiled(nn.GRU(4, 4), steps) == "PyTorch runs nn.GRU in eager"
    inside = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4))
    assert why_uncompiled(inside, steps) == ("PyTorch runs nn.LSTM in eager, and possibly the functions that call it")


def test_the_example_is_left_as_it_was() -> None:
    given = Example((X.clone(),))
    why_uncompiled(lambda x: x.add_(1.0).tolist(), given)
    assert torch.equal(given.args[0], X)
