"""Attributes that libraries leave on a model make a decision stale only if they change answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import torchwise
from live_decisions import make_decision
from torchwise.environment import detect
from torchwise.plan import Plan
from torchwise.records import Decision
from torchwise.records.structure_differences import pack_details
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.staleness import stale_because
from torchwise.workload.structure_details import details_of

pytestmark = pytest.mark.usefixtures("dynamo_afresh")

X, THREADS = torch.ones(2, 4), Plan(threads=1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.scale = 2.0

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x * getattr(self, "gain", 1.0)

    def save(self) -> Any:
        return self.saved_as

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.helper(self.norm(self.fc(x))) * self.scale


def decision_for(model: Any) -> Decision:
    return make_decision(model, THREADS, X, structure_details=pack_details(details_of(model)))


def set_on(*path: str, name: str, value: Any = True) -> Callable[[nn.Module], None]:
    return lambda net: setattr(net.get_submodule(".".join(path)), name, value)


def hook_by_accelerate(net: Any) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    hooks.add_hook_to_module(net.fc, hooks.ModelHook())


def observe(net: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, says PyTorch
        net.qconfig = torch.ao.quantization.default_qconfig
        torch.ao.quantization.prepare(net, inplace=True)


def call_compiled(net: nn.Module) -> None:
    with torch.no_grad():
        torch.compile(net, backend="eager")(X)


MARKS: dict[str, Callable[[Any], Any]] = {
    "torch.compile": lambda net: torch.compile(net, backend="eager"),
    "torch.compile, called": call_compiled,
    "compile()": lambda net: net.compile(backend="eager"),
    "compile() of a part": lambda net: net.fc.compile(backend="eager"),
    "requires_grad": lambda net: net.requires_grad_(False),
    "a library's mark": set_on("fc", name="_is_hf_initialized"),
    "a name": set_on(name="name_or_path", value="a/b"),
    "what a method reads that no call runs": set_on(name="saved_as", value="a"),
    "a configuration that no code reads": lambda net: setattr(net, "qconfig", torch.ao.quantization.default_qconfig),
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "what forward reads": set_on(name="scale", value=3.0),
    "what a method reads": set_on(name="gain", value=3.0),
    "what a layer reads": set_on("norm", name="eps", value=1.0),
    "a hook of accelerate": hook_by_accelerate,
    "a parametrization": lambda net: torch.nn.utils.parametrizations.weight_norm(net.fc),
    "observers": observe,
    "a mark beside a change": lambda net: (set_on(name="mark")(net), set_on(name="scale", value=3.0)(net)),
    "forward": lambda net: setattr(net, "forward", lambda x: x),
}


@pytest.mark.parametrize("kind", MARKS)
def test_a_mark_that_no_code_reads_makes_no_decision_stale(kind: str) -> None:
    decision = decision_for(net := Net().eval())
    MARKS[kind](net)
    assert stale_because(net, decision) is None


@pytest.mark.parametrize("kind", CHANGES)
def test_what_may_change_answers_makes_it_stale(kind: str) -> None:
    decision = decision_for(net := Net().eval())
    CHANGES[kind](net)
    assert stale_because(net, decision) is not None


def test_a_mark_that_was_there_may_be_gone_or_another() -> None:
    marked = Net().eval()
    marked.mark = 1  # type: ignore[assignment]
    decision = decision_for(marked)
    assert stale_because(Net().eval(), decision) is None
    marked.mark = 2  # type: ignore[assignment]
    assert stale_because(marked, decision) is None


class Scaling:
    """Holds the model, and reads its attributes."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.net.strength  # type: ignore[operator]


class Holding(nn.Module):
    """Leaves its work to an object that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.strength, self.scaling = 1.0, Scaling(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaling.apply(x)


def test_what_an_object_in_it_reads_is_read() -> None:
    net = Holding()
    decision = decision_for(net)
    net.strength = 2.0
    assert "strength is 2.0, and was 1.0" in str(stale_because(net, decision))


def test_nothing_is_a_mark_where_code_is_too_much_to_look_through(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = decision_for(net := Net().eval())
    set_on(name="mark")(net)
    assert stale_because(net, decision) is None
    monkeypatch.setattr("torchwise.runtime.staleness.MAX_FUNCTIONS", 1)
    assert "mark" in str(stale_because(net, decision))


def test_what_a_hook_reads_is_read() -> None:
    net = Net().eval()
    net.fc.register_forward_hook(lambda module, _, output: output * module.strength)
    net.fc.strength = 1.0  # type: ignore[assignment]
    decision = decision_for(net)
    net.fc.strength = 2.0  # type: ignore[assignment]
    assert "strength is 2.0, and was 1.0" in str(stale_because(net, decision))


def test_marks_on_the_model_of_a_training_step_are_none_either() -> None:
    net = Net()
    step = torchwise.TrainStep(net, nn.functional.mse_loss, torch.optim.SGD(net.parameters(), lr=0.1))
    decision = decision_for(step)
    net.name_or_path = "a"  # type: ignore[assignment]
    assert stale_because(step, decision) is None
    net.scale = 3.0
    assert stale_because(step, decision) is not None


def test_a_decision_without_details_is_stale_as_before() -> None:
    decision = make_decision(net := Net().eval(), THREADS, X)
    net.name_or_path = "a"  # type: ignore[assignment]
    assert stale_because(net, decision) is not None


def test_who_answers_once_the_user_compiled_the_model() -> None:
    seen: list[str] = []

    def make_noting_backend(name: str) -> Callable[..., Any]:
        def compiler(graph: Any, _: Any) -> Any:
            return lambda *args: (seen.append(name), graph.forward(*args))[1]

        return compiler

    net = Net().eval()
    decision = decision_for(net)
    beside = torch.compile(net, backend=make_noting_backend("beside"))
    with torch.no_grad():
        fast = torchwise.apply(net, decision)
        fast(X)
        assert (fast.statistics.optimized, seen) == (1, [])  # the plan answers, and no compiled code of the user's
        assert torch.equal(beside(X), net(X))
        fast(X)
        assert (fast.statistics.optimized, seen) == (2, ["beside"])
        torch._dynamo.reset()  # or earlier compiled code already serves the next
        net.compile(backend=make_noting_backend("itself"))
        fast(X)
        assert seen == ["beside", "itself"]
        assert dict(fast.statistics.original) == {FallbackReason.COMPILE_CHANGED: 1}
        again = torchwise.apply(net, decision)  # as the code is the same, the plan may answer it
        again(X)
        assert (again.statistics.optimized, seen) == (1, ["beside", "itself"])


@pytest.mark.parametrize(("plan", "is_stale"), [(THREADS, False), (Plan(backend="openvino"), True)], ids=str)
def test_another_version_of_a_compiler_matters_to_plans_that_need_it(plan: Plan, is_stale: bool) -> None:
    pytest.importorskip("openvino")
    model = Net()
    decision = make_decision(model, plan, X)
    assert stale_because(model, decision) is None
    former = replace(decision, environment=replace(decision.environment, compilers="openvino 2025.1"))
    found = stale_because(model, former)
    assert found == (f"compilers: openvino 2025.1 there, {detect('cpu').compilers} here" if is_stale else None)
