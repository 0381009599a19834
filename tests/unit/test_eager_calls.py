"""Calls of wrappers that stay with eager: compiled checks take next to no time, and do the same as Python."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from live_decisions import make_decision
from torchwise._torch import native
from torchwise.plan import Plan
from torchwise.runtime import module
from torchwise.runtime.module import OptimizedFunction, OptimizedModule

X = torch.ones(2, 3)


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return x * factor


pytestmark = pytest.mark.usefixtures("way")


def stay(original: Any, *args: Any) -> Any:
    """Return a wrapper that stays with eager, and has said so."""
    kind = OptimizedModule if isinstance(original, torch.nn.Module) else OptimizedFunction
    wrapper = kind(original, make_decision(original, Plan(), *args))
    wrapper(*args)
    return wrapper


def count_frames(call: Callable[[], Any]) -> int:
    """Return how many functions of the wrappers' file Python runs in a call."""
    found = list[str]()
    sys.setprofile(lambda frame, event, _: found.append(event) if frame.f_code.co_filename == module.__file__ else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found.count("call")


@pytest.mark.parametrize("original", [Scale(), torch.nn.Sequential(Scale()), lambda x: x * 2])
def test_each_call_is_answered_by_the_original_and_counted(original: Any, way: str) -> None:
    wrapper = stay(original, X)
    before = wrapper._dispatcher.statistics.stayed
    for number in range(1, 4):
        assert torch.equal(wrapper(X), X * 2)
        assert wrapper._dispatcher.statistics.stayed == before + number
    assert count_frames(lambda: wrapper(X)) == (way == "python")


def test_arguments_by_name_and_many_are_handed_on() -> None:
    wrapper = stay(Scale(), X)
    assert torch.equal(wrapper(X, factor=3.0), X * 3)
    assert torch.equal(wrapper(factor=4.0, x=X), X * 4)
    many = stay(lambda *args, **named: (args, named), X)
    assert many(*range(50), a=1) == (tuple(range(50)), {"a": 1})
    assert many() == ((), {})

    class Many(torch.nn.Module):
        def forward(self, *args: int, **named: int) -> Any:
            return args, named

    wrapped = stay(Many(), 1)
    for count in (0, 30, 31, 32, 33, 50):
        assert wrapped(*range(count), a=1) == (tuple(range(count)), {"a": 1})


def test_hooks_of_the_wrapper_and_of_the_original_run() -> None:
    original, seen = Scale(), list[str]()
    wrapper = stay(original, X)
    handles = [
        wrapper.register_forward_hook(lambda *_: seen.append("after wrapper")),
        wrapper.register_forward_pre_hook(lambda *_: seen.append("before wrapper")),
        original.register_forward_hook(lambda *_: seen.append("after original")),
    ]
    wrapper(X)
    assert seen == ["before wrapper", "after original", "after wrapper"]
    for handle in handles[:2]:
        handle.remove()
    seen.clear()
    wrapper(X)
    assert seen == ["after original"]


def test_a_call_of_the_original_s_own_is_called() -> None:
    class Own(Scale):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs) + 1

    assert torch.equal(stay(Own(), X)(X), X * 2 + 1)
    compiled = Scale()
    wrapper = stay(compiled, X)
    compiled._compiled_call_impl = lambda x: x * 7
    assert torch.equal(wrapper(X), X * 7)
    replaced = Scale()
    wrapper = stay(replaced, X)
    replaced._call_impl = lambda x: x * 5
    assert torch.equal(wrapper(X), X * 5)


def test_once_it_is_closed_calls_have_another_reason() -> None:
    wrapper = stay(Scale(), X)
    stayed = wrapper._dispatcher.statistics.stayed
    wrapper._dispatcher.close()
    assert torch.equal(wrapper(X), X * 2)
    assert (wrapper._dispatcher.statistics.stayed, wrapper._dispatcher.statistics.calls) == (stayed, stayed + 1)


def test_errors_are_the_original_s() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 6:
            raise ValueError("too much")
        return x

    for original in (refuse, torch.nn.Sequential()):
        wrapper = stay(original, X)
        with pytest.raises(TypeError):
            wrapper(X, X, X)
    with pytest.raises(ValueError, match="too much"):
        stay(refuse, X)(X + 1)


def test_a_compiler_traces_the_wrapper_as_it_is_in_python() -> None:
    wrapper = stay(Scale(), X)
    with torch.no_grad():
        compiled = torch.compile(lambda x: wrapper(x) + 1, backend="eager", fullgraph=True)
        assert torch.equal(compiled(X), X * 2 + 1)


def test_a_class_whose_call_is_replaced_uses_that(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = stay(Scale(), X)
    monkeypatch.setattr(OptimizedModule, "__call__", lambda _self, x: x - 1)
    assert torch.equal(wrapper(X), X - 1)


def test_a_subclass_with_a_call_of_its_own_uses_that() -> None:
    class Own(OptimizedModule):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs) + 1

    wrapper = Own(Scale(), make_decision(Scale(), Plan(), X))
    for _ in range(3):
        assert torch.equal(wrapper(X), X * 2 + 1)


def test_checks_that_are_compiled_later_take_the_calls(
    way: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "load_checks", lambda: None)
    stay(Scale(), X)
    assert module._taken == set()
    compiled = request.getfixturevalue("native_checks") if way == "native" else None
    monkeypatch.setattr(native, "load_checks", lambda: compiled)
    wrapper = stay(Scale(), X)
    assert count_frames(lambda: wrapper(X)) == (way == "python")


def test_nothing_is_kept_of_a_call() -> None:
    wrapper, function, given = stay(Scale(), X), stay(lambda x, **_: x, X), torch.ones(3)
    named = {"factor": 3.0}

    def run(times: int) -> None:
        for _ in range(times):
            wrapper(given, **named)
            function(given, **named)

    run(10)
    gc.collect()
    objects = (given, named["factor"], wrapper, function, wrapper._dispatcher, wrapper._dispatcher.statistics, Scale)
    before = [sys.getrefcount(one) for one in objects]
    run(1000)
    gc.collect()
    after = [sys.getrefcount(one) for one in objects]
    assert max(abs(one - other) for one, other in zip(before, after, strict=True)) <= 2


def test_only_a_class_with_a_call_in_python_is_entered(native_checks: Any) -> None:
    for kind in (int, torch.Tensor, type("Plain", (), {})):
        with pytest.raises(TypeError, match="no __call__ in Python"):
            native_checks.enter(kind, False, None, object, abs)
