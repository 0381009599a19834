"""A frozen plan compiles and captures nothing, after any change: the original answers, counted."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import prometheus_client
import pytest
import torch
from torch._dynamo.callback import callback_handler

import torchwise
from live_decisions import make_decision
from torchwise._torch.dynamo import count_compiled_graphs
from torchwise._torch.private_name import PrivateName
from torchwise.compile import CompiledPlan
from torchwise.compile.cuda_graphs import compile_freeze
from torchwise.compile.cuda_graphs.compile_freeze import (
    FrozenError,
    count_capture,
    count_captured_graphs,
    forbid_compile,
    is_in_frozen_call,
)
from torchwise.errors import InputError, UnsupportedError
from torchwise.plan import Plan
from torchwise.runtime import circuit_breaker
from torchwise.runtime.circuit_breaker import CircuitBreaker
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.served import dispatcher_of
from torchwise.runtime.serving import freeze, unfreeze

pytestmark = pytest.mark.usefixtures("dynamo_afresh", "way")  # calls are taken in Python, and by compiled checks

INDUCTOR = Plan(backend="inductor")
X = torch.randn(3, 4)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.0))
        self.factor = 2.0
        self.factors = [1.0]
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.to(self.inner[0].weight.dtype)) * self.factor * self.factors[0]


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def warm(net: Net) -> Any:
    fast = torchwise.apply(net, make_decision(net, INDUCTOR, X))
    with torch.no_grad():
        for _ in range(2):
            fast(X)
    assert fast.statistics.original == {}
    freeze(fast)
    return fast


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def change_dtype(net: Net) -> None:
    net.double()


def to_other_weights(net: Net) -> None:
    net.inner[0].weight = torch.nn.Parameter(torch.ones(4, 4), requires_grad=False)


def to_other_memory(net: Net) -> None:
    net.inner[0].weight.data = torch.ones(4, 8)[:, ::2]


def to_training(net: Net) -> None:
    net.train()


def part_to_training(net: Net) -> None:
    net.inner[1].train()


def to_another_layer(net: Net) -> None:
    net.inner[1] = torch.nn.Tanh()


def another_attribute(net: Net) -> None:
    net.factor = 3.0


def change_list_item(net: Net) -> None:
    net.factors[0] = 5.0


def add_hook(net: Net) -> None:
    net.inner[0].register_forward_hook(lambda _module, _args, output: output + 1)


CHANGES = [
    change_dtype,
    to_other_weights,
    to_other_memory,
    to_training,
    part_to_training,
    to_another_layer,
    another_attribute,
    change_list_item,
    add_hook,
]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_module_that_changes_is_never_compiled_for(net: Net, change: Callable[[Net], None]) -> None:
    fast = warm(net)
    change(net)
    for _ in range(3):
        torch.testing.assert_close(fast(X), net(X))
    counts = fast.statistics
    assert (counts.compiles, counts.captures) == (0, 0)
    assert counts.calls == 5


@pytest.mark.slow
@torch.no_grad()
def test_pytorch_is_not_asked_again_on_every_call(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question takes many times as long as the call."""
    now, asked = [0.0], list[str]()
    refuse = compile_freeze._refuse_compiling
    clocked = functools.partial(CircuitBreaker, clock=lambda: now[0])
    monkeypatch.setattr(circuit_breaker, "CircuitBreaker", clocked)
    monkeypatch.setattr(callback_handler, "start_callbacks", [])
    monkeypatch.setattr(compile_freeze, "_refuse_compiling", lambda event: (asked.append("once"), refuse(event)))
    fast = warm(net)
    net.factors[0] = 5.0
    for seconds, expected in ((0.0, 1), (0.9, 1), (1.1, 2), (2.9, 2), (3.2, 3), (1000.0, 4)):
        now[0] = seconds
        for _ in range(3):
            torch.testing.assert_close(fast(X), net(X))
        assert len(asked) == expected
    assert fast.statistics.original == {FallbackReason.FROZEN_CHANGED: 18}
    with torch.enable_grad():  # another grad mode, which says nothing of this one
        fast(X)
    assert len(asked) == 5
    net.factors[0], now[0] = 1.0, 1061.0
    fast(X)
    assert fast.statistics.optimized == 3


@pytest.mark.slow
@torch.no_grad()
def test_the_original_answers_under_its_own_reason_until_what_changed_changes_back(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "REFUSED_WAIT_S", 0.0)
    fast = warm(net)
    for times in range(1, 5):  # more often than failures open a circuit
        net.factors[0] = 5.0
        torch.testing.assert_close(fast(X), net(X))
        assert fast.statistics.original == {FallbackReason.FROZEN_CHANGED: times}
        net.factors[0] = 1.0
        torch.testing.assert_close(fast(X), net(X))
    assert fast.statistics.optimized == 6
    assert fast.statistics.opened == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (torch.enable_grad, FallbackReason.FROZEN_CHANGED),
        (lambda: torch.autocast("cpu", torch.bfloat16), FallbackReason.AUTOCAST_ENABLED),
        (default_dtype, FallbackReason.FROZEN_CHANGED),
    ],
    ids=["gradients", "autocast", "default dtype"],
)
@torch.no_grad()
def test_pytorchs_settings_that_change_are_never_compiled_for(
    net: Net, state: Callable[[], AbstractContextManager[None]], reason: FallbackReason, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = warm(net)
    monkeypatch.setattr(circuit_breaker, "REFUSED_WAIT_S", 0.0)
    with state():
        torch.testing.assert_close(fast(X), net(X))
    assert (fast.statistics.compiles, fast.statistics.original) == (0, {reason: 1})
    torch.testing.assert_close(fast(X), net(X))
    assert fast.statistics.optimized == 3


@pytest.mark.slow
@torch.no_grad()
def test_unfrozen_it_compiles_again_and_may_be_frozen_again(net: Net) -> None:
    fast = warm(net)
    net.factors[0] = 5.0
    fast(X)
    unfreeze(fast)
    assert fast.statistics.compiles is None
    before = count_compiled_graphs()
    torch.testing.assert_close(fast(X), net(X))
    assert fast.statistics.original == {FallbackReason.FROZEN_CHANGED: 1}
    assert count_compiled_graphs() == before + 1
    freeze(fast)
    torch.testing.assert_close(fast(X), net(X))
    assert (fast.statistics.optimized, fast.statistics.compiles) == (4, 0)


@pytest.mark.slow
@torch.no_grad()
def test_it_stays_frozen_after_dynamo_was_reset(net: Net) -> None:
    fast = warm(net)
    torch._dynamo.reset()
    assert callback_handler.start_callbacks == []
    net.factors[0] = 5.0
    torch.testing.assert_close(fast(X), net(X))
    assert fast.statistics.compiles == 0


@pytest.mark.slow
@torch.no_grad()
def test_what_others_compile_meanwhile_is_compiled_and_counted(net: Net) -> None:
    """The original may be compiled by its owner, and other threads may compile while the plan answers."""
    fast = warm(net)
    mine = torch.compile(lambda x: x.cos() + 7, backend="eager")
    mine(X)
    assert fast.statistics.compiles == 1
    met: list[Any] = []

    def plan(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: met.append(torch.compile(lambda x: x.sin() + 3, backend="eager")(x)))
        thread.start()
        thread.join()
        return x

    forbid_compile(plan)(X)
    torch.testing.assert_close(met[0], X.sin() + 3)


@torch.no_grad()
def test_a_plan_whose_memory_was_freed_is_not_made_anew(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def realize(*_args: Any, **_options: Any) -> CompiledPlan:
        made.append("once")
        return CompiledPlan(INDUCTOR, net, lambda _args, _kwargs: net, lambda: None)

    monkeypatch.setattr("torchwise.runtime.served.compile_plan", realize)
    fast = warm(net)
    dispatcher = dispatcher_of(fast)
    assert dispatcher is not None
    dispatcher._release("the plan")
    dispatcher._circuits.memory.record_success()  # as ten minutes later
    assert torch.equal(fast(X), net(X))
    assert (made, fast.statistics.original) == (["once"], {FallbackReason.FROZEN_FREED: 1})
    unfreeze(fast)
    fast(X)
    assert made == ["once", "once"]


@torch.no_grad()
def test_what_is_refused_within_a_frozen_call_is_refused_in_its_thread_alone() -> None:
    def compiles(x: torch.Tensor) -> torch.Tensor:
        assert is_in_frozen_call()
        return torch.compile(lambda x: x + 11, backend="eager")(x)

    for _ in range(2):
        with pytest.raises(FrozenError, match="needs a new compilation"):
            forbid_compile(compiles)(X)
    assert not is_in_frozen_call()
    assert torch.equal(torch.compile(lambda x: x + 12, backend="eager")(X), X + 12)
    with pytest.raises(ZeroDivisionError):
        forbid_compile(lambda: 1 / 0)()


def test_captures_are_counted_beside_compilations(net: Net) -> None:
    fast = torchwise.apply(net, make_decision(net, INDUCTOR, X))
    registry = prometheus_client.CollectorRegistry()
    torchwise.export_metrics(fast, "net", registry)
    labels = {"model": "net", "plan": str(INDUCTOR)}
    assert registry.get_sample_value("torchwise_captures_since_freeze", labels) is None
    assert fast.statistics.snapshot()["captures_since_freeze"] is None
    freeze(fast)
    before = count_captured_graphs()
    count_capture()
    assert count_captured_graphs() == before + 1
    assert fast.statistics.snapshot()["captures_since_freeze"] == 1
    assert fast.statistics.snapshot()["compiles_since_freeze"] == 0
    assert registry.get_sample_value("torchwise_captures_since_freeze", labels) == 1
    assert registry.get_sample_value("torchwise_compiles_since_freeze", labels) == 0
    freeze(fast)
    assert fast.statistics.captures == 1, "a second freeze forgets nothing"


def test_graphs_that_a_mode_of_pytorch_records_are_counted_too() -> None:
    from torch._dynamo.callback import CallbackArgs, CallbackTrigger

    forbid_compile(lambda: None)()
    before = count_captured_graphs()
    compile_freeze._refuse_compiling(CallbackArgs(CallbackTrigger.CUDAGRAPH_RECORDING, "0/0"))
    assert count_captured_graphs() == before + 1


@torch.no_grad()
def test_a_freeze_in_the_midst_of_a_first_call_holds_for_the_next(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []

    def plan(x: torch.Tensor) -> torch.Tensor:
        held.append(is_in_frozen_call())
        return x

    def lean(_args: Any, _kwargs: Any) -> Any:
        freeze(fast)
        return plan

    monkeypatch.setattr(
        "torchwise.runtime.served.compile_plan",
        lambda *_args, **_options: CompiledPlan(INDUCTOR, plan, lean, lambda: None),
    )
    fast = torchwise.apply(net, make_decision(net, INDUCTOR, X))
    fast(X)
    fast(X)
    assert held == [False, True]
    assert FallbackReason.FROZEN not in fast.statistics.original


def test_a_torch_that_does_not_say_when_it_compiles_cannot_be_frozen(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = torchwise.apply(net, make_decision(net, INDUCTOR, X))
    monkeypatch.setattr(compile_freeze, "CALLBACK_HANDLER", PrivateName("torch._dynamo.callback", "no_such_name"))
    with pytest.raises(UnsupportedError, match=r"freezing a plan needs torch\._dynamo\.callback\.no_such_name"):
        freeze(fast)
    assert fast.statistics.at_freeze is None


def test_only_what_was_optimised_is_unfrozen(net: Net) -> None:
    with pytest.raises(InputError, match=r"it is of type Net, and Torchwise did not make it"):
        unfreeze(net)


@torch.no_grad()
def test_a_freeze_waits_for_a_fast_path_that_is_being_added(net: Net) -> None:
    fast = torchwise.apply(net, make_decision(net, Plan(threads=torch.get_num_threads() + 1), X))
    dispatcher: Any = dispatcher_of(fast)
    thread = threading.Thread(target=freeze, args=(fast,))
    with dispatcher._lock:
        thread.start()
        thread.join(0.2)
        assert (dispatcher.is_frozen, fast.statistics.at_freeze) == (False, None)
    thread.join(30)
    assert dispatcher.is_frozen
    assert fast.statistics.compiles == 0
