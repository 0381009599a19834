"""The place where a call enters compiled code is below `Module.__call__`, also for the library's own classes."""

from __future__ import annotations

import functools
import inspect
import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from counted import Counted
from torch import nn

from torchwise.compile.forward_entry import entry_of

pytestmark = pytest.mark.usefixtures("dynamo_afresh")

X = torch.randn(3, 4)


class Chain(nn.Sequential):
    """A class of its own whose forward is the library's."""


class Own(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def a_chain() -> nn.Module:
    torch.manual_seed(0)
    return Chain(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 4)).eval()


def test_a_module_of_the_library_has_the_straight_way_that_others_have() -> None:
    chain = a_chain()
    assert Counted(chain.forward, X).bypass.reason, "it depends on what Dynamo's wrapper holds"
    torch._dynamo.reset()
    assert Counted(entry_of(chain), X).bypass.reason == ""


@pytest.mark.parametrize("make", [a_chain, lambda: nn.Linear(4, 4), lambda: nn.LayerNorm(4), lambda: Own(4, 4)])
def test_what_is_entered_answers_as_the_module_and_sees_its_weights(make: Callable[[], nn.Module]) -> None:
    module = make()
    compiled = torch.compile(entry_of(module), backend="eager")
    torch.testing.assert_close(compiled(X), module(X))
    next(module.parameters()).add_(1)
    torch.testing.assert_close(compiled(X), module(X))


def test_the_signature_stays() -> None:
    layer = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    entry = entry_of(layer)
    assert inspect.signature(entry) == inspect.signature(layer.forward)
    query = torch.randn(2, 3, 4)
    answer, weights = entry(query, query, query, need_weights=False)
    torch.testing.assert_close(answer, layer(query, query, query, need_weights=False)[0])
    assert weights is None


def test_modules_of_one_class_are_told_apart() -> None:
    first, second = a_chain(), a_chain()
    second[0].weight.mul_(2)  # type: ignore[index,operator,union-attr]
    compiled = [torch.compile(entry_of(module), backend="eager") for module in (first, second)]
    for module, call in zip((first, second, first), (*compiled, compiled[0]), strict=True):
        torch.testing.assert_close(call(X), module(X))


def test_only_plain_modules_of_the_library_are_entered_otherwise() -> None:
    own = Own(4, 4)
    assert entry_of(own) == own.forward
    assert entry_of(torch.tanh) is torch.tanh
    replaced = nn.Linear(4, 4)
    replaced.forward = lambda x: x  # type: ignore[method-assign]
    assert entry_of(replaced) is replaced.forward
    parallel = nn.DataParallel(own)  # which Dynamo treats in its own way
    assert entry_of(parallel) == parallel.forward


def test_forwards_that_were_made_or_wrapped_are_entered_as_they_are() -> None:
    traced = torch.fx.symbolic_trace(a_chain())  # its forward belongs to no module of Python's
    assert entry_of(traced) == traced.forward
    layer = nn.Linear(4, 4)
    inner = layer.forward

    @functools.wraps(nn.Linear.forward)  # it takes the library's name on, and holds a user's model
    def double(self: nn.Module, x: torch.Tensor) -> Any:
        return inner(2 * x)

    layer.forward = types.MethodType(double, layer)  # type: ignore[method-assign]
    assert entry_of(layer) == layer.forward


def test_what_dynamo_was_told_of_a_forward_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)

    of_the_library = types.FunctionType(forward.__code__, vars(nn.modules.activation), "forward")
    of_the_library._torchdynamo_disable = True  # type: ignore[attr-defined]
    monkeypatch.setattr(nn.Tanh, "forward", of_the_library)
    entry: Any = entry_of(nn.Tanh())
    assert entry.__func__ is not of_the_library
    assert entry._torchdynamo_disable


def test_a_traceback_shows_the_library_s_own_line() -> None:
    with pytest.raises(RuntimeError) as raised:
        entry_of(a_chain())(torch.randn(3, 5))
    frames = traceback.extract_tb(raised.tb)
    [frame] = [frame for frame in frames if frame.filename.endswith("container.py")]
    assert frame.line == "input = module(input)"


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_a_module_with_hooks_is_entered_by_the_front_door(kind: str) -> None:
    module = a_chain()
    getattr(module, f"register_{kind}_hook")(lambda *_: None)
    assert entry_of(module) is module
