"""Models of TorchScript, as many a service loads them: traced, scripted, frozen, saved and within others."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchwise
from torchwise import environment
from torchwise.compile import compile_plan
from torchwise.compile.guards.module_guard import ModuleGuard
from torchwise.compile.uncompiled_reason import why_uncompiled
from torchwise.errors import UnsupportedError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Decision, Outcome
from torchwise.trial.plain_call import run_plainly
from torchwise.verify import Subject, verify
from torchwise.verify.reference import float64_of
from torchwise.workload import Example, Workload
from torchwise.workload.deep_copy import deep_copy
from torchwise.workload.identity import describe_example, structure
from torchwise.workload.module_state import State

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*", "ignore:.*deprecated.*")
X = torch.randn(8, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x)) + self.get_shift()

    def get_shift(self) -> torch.Tensor:
        return self.shift  # type: ignore[return-value]


class Other(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) + self.get_shift()


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def save_and_load(module: nn.Module) -> Any:
    written = io.BytesIO()
    torch.jit.save(torch.jit.script(module), written)
    return torch.jit.load(io.BytesIO(written.getvalue()))


KINDS: dict[str, Callable[[nn.Module], Any]] = {
    "traced": lambda m: torch.jit.trace(m, X),
    "scripted": torch.jit.script,
    "frozen": lambda m: torch.jit.freeze(torch.jit.script(m)),
    "optimized": lambda m: torch.jit.optimize_for_inference(torch.jit.script(m)),
    "loaded": save_and_load,
    "within": lambda m: nn.Sequential(torch.jit.trace(m, X), nn.ReLU()).eval(),
}


def make_model(kind: str, net: type[nn.Module] = Net) -> Any:
    torch.manual_seed(0)
    return KINDS[kind](net().eval())


def make_decision(model: Any, plan: Plan = EAGER) -> Decision:
    spec, here = WorkloadSpec("live:test"), environment.detect("cpu")
    inputs = (describe_example(Example((X,))),)
    return Decision(plan, "why", None, None, 0.0, 0.01, 0.0, None, spec, "identity", structure(model), inputs, here)


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_computes_is_its_structure_and_a_copy_has_the_same(kind: str) -> None:
    model = make_model(kind)
    assert (
        structure(model)
        == structure(make_model(kind))
        == structure(copy.deepcopy(model))
        == structure(deep_copy(model))
    )
    assert structure(model) != structure(make_model(kind, Other))


def test_the_same_holds_of_functions() -> None:
    script = torch.jit.script(double)
    assert structure(script) != structure(torch.jit.script(triple))
    assert deep_copy({"f": script})["f"] is script


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plan", [EAGER, Plan(threads=1)], ids=str)
def test_what_was_decided_for_it_answers(kind: str, plan: Plan) -> None:
    model = make_model(kind)
    optimized = torchwise.apply(model, make_decision(model, plan))
    with torch.no_grad():
        assert torch.equal(optimized(X), model(X))
        assert torch.equal(copy.deepcopy(optimized)(X), model(X))
    assert [*optimized.state_dict()] == [*model.state_dict()]
    assert [name for name, _ in optimized.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert optimized.training is False
    assert "plan" in repr(optimized)


def test_a_function_is_answered_too() -> None:
    script = torch.jit.script(double)
    assert torch.equal(torchwise.apply(script, make_decision(script))(X), X * 2)


def test_weights_that_are_loaded_are_answered_with() -> None:
    model, other = make_model("traced"), make_model("traced", Other)
    optimized = torchwise.apply(model, make_decision(model, Plan(threads=1)))
    optimized.load_state_dict(dict.fromkeys(other.state_dict(), torch.ones(4)) | {"layer.weight": torch.ones(4, 4)})
    with torch.no_grad():
        assert torch.equal(optimized(X), model(X))
        assert model.layer.weight.eq(1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_looked_at_and_a_wrong_answer_is_seen(kind: str) -> None:
    model = make_model(kind)
    workload = Workload(model, (Example((X,)),))
    assert run_plainly(workload, "inference").answers
    assert verify(Subject(workload, model, model)).outcome is Outcome.PASS
    assert verify(Subject(workload, lambda x: model(x) * 1.01, model)).outcome is Outcome.FAIL


@pytest.mark.parametrize("kind", ["traced", "scripted", "loaded", "within"])
def test_its_reference_is_in_float64(kind: str) -> None:
    assert float64_of(make_model(kind))(X.double()).dtype is torch.float64


@pytest.mark.parametrize("kind", ["traced", "scripted", "within"])
def test_weights_that_take_the_place_of_others_are_noticed(kind: str) -> None:
    model = make_model(kind)
    watch = ModuleGuard(model)
    assert not watch.has_changed()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    assert watch.has_changed()


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_that_needs_another_form_of_it_is_refused(kind: str) -> None:
    plan = Plan(backend="inductor", precision="bf16")
    with pytest.raises(UnsupportedError, match="TorchScript"):
        compile_plan(make_model(kind), plan, Example((X,)), device="cpu", mode="inference")


@pytest.mark.parametrize("model", [make_model("traced"), make_model("scripted"), torch.jit.script(double)])
def test_why_it_is_not_compiled_is_said(model: Any) -> None:
    assert "TorchScript" in why_uncompiled(model, Example((X,)))


class Counts(nn.Module):
    """Changes attributes, which TorchScript keeps for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.sums = torch.zeros(2)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.sums = self.sums + x.sum()
        self.seen.add_(1)  # type: ignore[operator]
        return x * self.calls + self.sums[0] + self.seen


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Counts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize(("model", "inside"), [(Counts(), ""), (Outer(), "inner.")])
def test_attributes_that_its_code_changes_are_found_and_put_back(model: nn.Module, inside: str) -> None:
    script = torch.jit.script(model)
    state = State.from_call(script)
    first = script(X)
    assert sorted(state.changes()) == [f"{inside}{name}" for name in ("calls", "seen", "sums")]
    state.restore()
    assert torch.equal(script(X), first)
