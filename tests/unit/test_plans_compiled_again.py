"""Plans that run a copy of the model, or freeze its weights, follow it or are made anew, within a bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchwise
from live_decisions import make_decision
from torchwise.alerts import heard
from torchwise.compile.backends import inductor
from torchwise.plan import Plan
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.module import OptimizedModule

pytestmark = pytest.mark.usefixtures("dynamo_afresh", "captured_only")

X = torch.linspace(-1.0, 1.0, 32).reshape(2, 4, 2, 2)
REGIONAL, FROZEN = Plan(backend="inductor", scope="regional"), Plan(backend="inductor", options=(("freezing", True),))
COPIES = [
    Plan(precision="bf16"),
    Plan(memory_format="channels_last"),
    REGIONAL,
    Plan(backend="inductor", transforms=("patch_matmul",)),
]


@pytest.fixture
def captured_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "_backend", lambda _plan, _options: lambda graph, _inputs: graph.forward)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.eps = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.tanh(self.first(x))) * self.eps


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, 4, 2, stride=2)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.register_buffer("shift", torch.ones(4))
        self.strength, self.style = 1.0, "plain"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(1)
        for block in self.blocks:
            x = block(x)
        return x * self.strength + self.shift + len(self.style)


def apply_plan(plan: Plan) -> tuple[OptimizedModule, Net]:
    torch.manual_seed(0)
    model = Net().eval()
    fast = OptimizedModule(model, make_decision(model, plan, X))
    for _ in range(2):
        fast(X)
    assert fast.statistics.optimized == 2, dict(fast.statistics.failures)
    return fast, model


def agree(fast: OptimizedModule, model: Net) -> None:
    ours, right = fast(X), model(X)
    assert (ours - right).norm() <= 0.02 * right.norm()


@pytest.mark.parametrize("plan", COPIES, ids=str)
@torch.no_grad()
def test_what_is_set_for_each_request_is_followed(plan: Plan) -> None:
    fast, model = apply_plan(plan)
    for i in range(20):
        model.last_request, model.blocks[1].note = i, [i]
        model.strength = 1.5 + i
        model.blocks[0].eps = 0.1 * i
        agree(fast, model)
    assert fast.statistics.optimized == 22
    assert fast.statistics.recompiles <= 2


def grow(block: Any) -> None:
    for layer, name, shape in (
        (block.first, "weight", (6, 4)),
        (block.first, "bias", (6,)),
        (block.second, "weight", (4, 6)),
    ):
        setattr(layer, name, nn.Parameter(torch.randn(shape)))


CHANGES: dict[str, Callable[[Any], object]] = {
    "weights assigned": lambda m: m.load_state_dict({k: v + 0.5 for k, v in m.state_dict().items()}, assign=True),
    "memory of a weight": lambda m: setattr(m.blocks[0].first.weight, "data", torch.randn(4, 4)),
    "submodule replaced": lambda m: m.blocks[1].__setattr__("first", nn.Linear(4, 4)),
    "weights grown": lambda m: [grow(block) for block in m.blocks],
    "buffer replaced": lambda m: setattr(m, "shift", torch.full((4,), 3.0)),
    "attribute that leads inside": lambda m: setattr(m, "mine", [m.blocks[0]]),
    "gradients not asked for": lambda m: m.requires_grad_(False),
}


# By day one change of all plans, and all changes of the plan that holds most of a model.
CHANGED = [
    pytest.param(plan, change, id=f"{plan}-{name}", marks=() if is_by_day else pytest.mark.nightly)
    for plan in (*COPIES, FROZEN)
    for name, change in CHANGES.items()
    for is_by_day in [plan == FROZEN or name == "submodule replaced"]
]


@pytest.mark.parametrize(("plan", "change"), CHANGED)
@torch.no_grad()
def test_after_a_change_the_plan_answers_again(plan: Plan, change: Callable[[Any], object]) -> None:
    fast, model = apply_plan(plan)
    change(model)
    for _ in range(4):
        agree(fast, model)
    assert fast.statistics.optimized >= 5, "within a call"
    assert not fast.statistics.failures
    model.strength = 7.0
    agree(fast, model)


@torch.no_grad()
def test_weights_that_change_all_the_time_are_not_frozen_in_for_ever() -> None:
    fast, model = apply_plan(FROZEN)
    with heard() as alerts:
        for _ in range(30):
            model.blocks[0].first.weight.add_(0.1)
            agree(fast, model)
    assert fast.statistics.recompiles == 8
    assert [alert.kind for alert in alerts] == ["recompile_limit"]
    assert "the values of the weights change from call to call" in alerts[0].message
    assert "tune without the option `freezing`" in alerts[0].message


@torch.no_grad()
def test_a_frozen_plan_is_not_made_anew_for_a_changed_model() -> None:
    fast, model = apply_plan(REGIONAL)
    torchwise.freeze(fast)
    agree(fast, model)
    kept = model.blocks[1].first
    model.blocks[1].first = nn.Linear(4, 4)
    agree(fast, model)
    assert dict(fast.statistics.original) == {FallbackReason.FROZEN_CHANGED: 1}
    assert fast.statistics.recompiles == 0
    model.blocks[1].first = kept
    agree(fast, model)


@torch.no_grad()
def test_why_a_plan_is_made_anew_is_said_by_name() -> None:
    fast, model = apply_plan(REGIONAL)
    model.blocks[1].first.weight = nn.Parameter(torch.randn(4, 4))
    agree(fast, model)
    [(reason, sentence)] = fast.statistics.sentences.items()
    said = "the model changed since it was compiled by the plan: `blocks.1.first.weight` on the model is different"
    assert (reason, sentence) == (FallbackReason.MODEL_CHANGED, f"{said}; the plan is compiled again")
