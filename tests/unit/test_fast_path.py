"""After a change the shortest way into compiled code is found again, and values that code never reads are no change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from counted import Counted, eager, settings
from torch import nn

from torchwise.compile import recompiles
from torchwise.compile.backends.compile_callback import compile_with
from torchwise.compile.guards import guard_bypass
from torchwise.compile.guards.guard_bypass import GuardBypass
from torchwise.compile.guards.module_guard import ModuleGuard, ModuleState
from torchwise.compile.recompiles import SHARE, Pace

pytestmark = pytest.mark.usefixtures("dynamo_afresh")

X = torch.randn(3, 4)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))
        self.eps, self.note = 0.5, "new"
        self.history: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x) + self.shift + self.eps
        return x * self.factor if hasattr(self, "factor") else x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.dropout = nn.Dropout(0.5)
        self.scale, self.version = 2.0, 1
        self.history: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.dropout(x) * self.scale


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def reload_weights(net: Net) -> None:
    net.load_state_dict({name: value + 1 for name, value in net.state_dict().items()}, assign=True)


def add_and_remove_hook(net: Net) -> None:
    net.layers[0].register_forward_hook(lambda *_: None).remove()


UNREAD: dict[str, Callable[[Any, int], object]] = {
    "attribute": lambda m, i: setattr(m, "version", i),
    "new attribute": lambda m, i: setattr(m, f"request_{i}", i),
    "attribute of a submodule": lambda m, i: setattr(m.layers[1], "note", [i]),
    "list appended": lambda m, i: m.layers[0].history.append(i),
    "list replaced": lambda m, i: setattr(m, "history", [i]),
    "tensor kept": lambda m, i: setattr(m, "last", torch.full((2,), i)),
    "set to what it is": lambda m, i: setattr(m, "scale", 2.0 * (i + 1) / (i + 1)),
    "train and eval": lambda m, _: (m.train(), m.eval()),
    "hook registered and removed": lambda m, _: add_and_remove_hook(m),
}


@pytest.mark.parametrize("change", UNREAD.values(), ids=list(UNREAD))
@torch.no_grad()
def test_what_the_code_never_reads_is_no_change(net: Net, change: Callable[[Any, int], object]) -> None:
    counted = Counted(net.forward, X)
    assert counted.bypass.reason == ""
    for i in range(20):
        change(net, i)
        assert torch.equal(counted(X), net(X))
    assert counted.steady_calls == 0
    net.scale = 3.0
    assert torch.equal(counted(X), net(X))
    assert counted.steady_calls == 1


ONCE: dict[str, Callable[[Any], object]] = {
    "weights assigned": reload_weights,
    "memory of a weight": lambda m: setattr(m.layers[0].linear.weight, "data", torch.randn(4, 4)),
    "weight replaced": lambda m: setattr(m.layers[0].linear, "bias", nn.Parameter(torch.randn(4))),
    "buffer replaced": lambda m: setattr(m.layers[1], "shift", torch.zeros(4)),
    "there and back in another type": lambda m: m.double().float(),
    "gradients not asked for": lambda m: m.requires_grad_(False),
    "submodule replaced": lambda m: m.layers.__setitem__(1, Layer().eval()),
    "attribute that is read": lambda m: setattr(m, "scale", 5.0),
    "attribute of a submodule that is read": lambda m: setattr(m.layers[1], "eps", 5.0),
    "attribute that was asked for in vain": lambda m: setattr(m.layers[0], "factor", 5.0),
    "attribute deleted": lambda m: delattr(m, "version"),
}


@pytest.mark.parametrize("change", ONCE.values(), ids=list(ONCE))
@torch.no_grad()
def test_after_one_change_the_straight_way_is_found_again(net: Net, change: Callable[[Any], object]) -> None:
    counted = Counted(net.forward, X)
    change(net)
    for _ in range(5):
        assert torch.equal(counted(X), net(X))
    assert counted.steady_calls <= 1
    before = counted.steady_calls
    net.layers[0].eps = 7.0
    assert torch.equal(counted(X), net(X))
    assert counted.steady_calls == before + 1


@torch.no_grad()
def test_after_a_setting_of_pytorch_it_is_found_again(net: Net) -> None:
    counted = Counted(net.forward, X)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(5):
            assert torch.equal(counted(X), net(X))
    finally:
        torch.use_deterministic_algorithms(False)
    assert counted.steady_calls == 1
    counted(X)
    assert counted.steady_calls == 1, "those of before are known still"


@torch.no_grad()
def test_what_was_compiled_outside_of_inference_mode_is_called_within(net: Net) -> None:
    counted = Counted(net.forward, X)
    with torch.inference_mode():
        for _ in range(3):
            torch.testing.assert_close(counted(X), net(X))
        assert counted.steady_calls == 0
        net.scale = 3.0
        torch.testing.assert_close(counted(X), net(X))
    assert counted.steady_calls == 1


@torch.no_grad()
def test_states_that_take_turns_are_all_known(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompiles, "SHARE", 1e6)
    counted = Counted(net.forward, X)
    for i in range(12):
        net.scale = (2.0, 3.0, 4.0)[i % 3]
        assert torch.equal(counted(X), net(X))
    assert counted.steady_calls <= 3, "one for each new value, and once more for those that became an input"


@torch.no_grad()
def test_changes_one_upon_the_other_are_not_all_looked_at(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    glance_at = guard_bypass.make_quick_check
    counted = Counted(net.forward, X)
    monkeypatch.setattr(
        guard_bypass, "make_quick_check", lambda *given: (looks.append(1), time.sleep(0.02), glance_at(*given))[2]
    )
    for i in range(100):
        net.scale = 3.0 + i
        assert torch.equal(counted(X), net(X))
    assert len(looks) <= 5


@torch.no_grad()
def test_code_of_another_backend_is_not_taken_for_the_plans(net: Net) -> None:
    def negate_outputs(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        return lambda *args: [-answer for answer in graph.forward(*args)]

    other = GuardBypass(net.forward)
    compiled, _ = compile_with(net.forward, negate_outputs, other, settings, is_dynamic=False)
    assert torch.equal(compiled(X), -net(X))
    bypass = GuardBypass(net.forward)
    mine, _ = compile_with(net.forward, eager, bypass, settings, is_dynamic=False)
    before = bypass.prepare_bypass((X,), {})
    assert torch.equal(mine(X), net(X))
    assert torch.equal(bypass.path(mine, (X,), {}, before)(X), net(X))


@torch.no_grad()
def test_a_watch_that_had_to_look_closely_glances_again(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(ModuleState, "has_changed", lambda _: looks.append(1))
    watch = ModuleGuard(net)
    net.requires_grad_(False)
    for _ in range(5):
        assert not watch.has_changed()
    assert len(looks) == 1


def test_no_more_than_a_share_of_the_time_is_spent() -> None:
    now = [0.0]
    due, spent = Pace(lambda: now[0]), 0.0
    for _ in range(1000):
        if due.is_due():
            with due:
                now[0] += 0.1
                spent += 0.1
        now[0] += 0.01
    assert 0.5 * SHARE < spent / now[0] <= SHARE
