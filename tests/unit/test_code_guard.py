"""Code that is replaced without a trace in the model is noticed. Equal code that was made again is no change."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import code_samples
import pytest
import torch
from torch import nn

from live_decisions import make_decision
from torchwise.compile.guards.code_guard import CodeGuard
from torchwise.compile.guards.dict_contents import watch
from torchwise.compile.guards.reachable_code import MAX_FUNCTIONS, ReachableCode, is_same_code
from torchwise.plan import Plan
from torchwise.runtime import Dispatcher
from torchwise.runtime.call_guard import CallGuard
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.module import OptimizedModule

pytestmark = pytest.mark.usefixtures("dynamo_afresh", "checks")

X = torch.rand(4, 8)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def call_double(x: torch.Tensor) -> torch.Tensor:
    return double(x)


def decorate(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def inner(*args: Any) -> Any:
        return call(*args)

    return inner


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * x


class Inner(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 2.0, *, shift: float = 0.0) -> torch.Tensor:
        return x * scale + shift


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head, self.act = Inner(), nn.Linear(8, 8), functools.partial(double)

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return call_double(code_samples.add_three(x))

    @property
    def offset(self) -> float:
        return 1.0

    @staticmethod
    def halve(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    @torch.no_grad()
    def undone(self, x: torch.Tensor) -> torch.Tensor:
        return x - 1

    @decorate
    def call_undone(self, x: torch.Tensor) -> torch.Tensor:
        return self.undone(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.helper(self.head(self.inner(x))) + self.offset
        return Square.apply(self.halve(self.act(self.call_undone(x))))

    def return_input(self, x: torch.Tensor) -> torch.Tensor:
        return x


def other(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 0 + 7


def other_function(x: torch.Tensor) -> torch.Tensor:
    return x * 0 + 7


def unwrap(wrapper: Any) -> Any:
    return inspect.unwrap(wrapper)


def replaced(name: str) -> Fallback:
    return Fallback(FallbackReason.CODE_REPLACED, name)


FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "forward": (Net.forward, other),
    "a method": (Net.helper, other),
    "a submodule's forward": (Inner.forward, other),
    "a static method": (Net.halve, other_function),
    "a property": (vars(Net)["offset"].fget, lambda self: 5.0),
    "behind PyTorch's decorator": (unwrap(vars(Net)["undone"]), other),
    "behind a decorator": (unwrap(vars(Net)["call_undone"]), other),
    "a global function": (call_double, other_function),
    "what a global function calls": (double, other_function),
    "a function of another module": (code_samples.add_three, other_function),
    "an autograd function": (Square.forward, lambda ctx, x: x),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_code_that_is_replaced_in_a_function_is_noticed_and_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, another = FUNCTIONS[kind]
    changes = CallGuard(Net(), inference=True).make_check()
    assert changes() is None
    with monkeypatch.context() as patch:
        patch.setattr(function, "__code__", another.__code__)
        assert changes() == replaced(f"the code of {function.__qualname__}")
        assert changes() is not None
    assert changes() is None


def test_defaults_that_are_replaced_in_a_function_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = CallGuard(Net(), inference=True).make_check()
    with monkeypatch.context() as patch:
        patch.setattr(Inner.forward, "__defaults__", (torch.ones(2),))
        assert changes() == replaced("a default of Inner.forward")
    assert changes() is None
    with monkeypatch.context() as patch:
        patch.setattr(Inner.forward, "__kwdefaults__", {"shift": 1.0})
        assert changes() == replaced("a default of Inner.forward")
    with monkeypatch.context() as patch:
        assert Inner.forward.__kwdefaults__ is not None
        patch.setitem(Inner.forward.__kwdefaults__, "shift", 1.0)
        assert changes() == replaced("a default of Inner.forward.shift")
    assert changes() is None


BOUND: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "forward": lambda net, patch: patch.setattr(net.inner, "forward", lambda x: x),
    "forward of a layer": lambda net, patch: patch.setattr(net.head, "forward", lambda x: x),
    "_call_impl": lambda net, patch: patch.setattr(net.inner, "_call_impl", lambda x: x, raising=False),
    "_slow_forward": lambda net, patch: patch.setattr(net.head, "_slow_forward", lambda x: x, raising=False),
    "a method of the model": lambda net, patch: patch.setattr(net, "helper", lambda x: x),
    "_call_impl of a class": lambda net, patch: patch.setattr(Inner, "_call_impl", other),
    "_wrapped_call_impl of a class": lambda net, patch: patch.setattr(Inner, "_wrapped_call_impl", other),
    "__call__ of a class": lambda net, patch: patch.setattr(Inner, "__call__", other),
    "a global function": lambda net, patch: patch.setitem(globals(), "call_double", other_function),
    "a global class": lambda net, patch: patch.setitem(globals(), "Square", torch.autograd.Function),
    "a function of another module": lambda net, patch: patch.setattr(code_samples, "add_three", other_function),
}


@pytest.mark.parametrize("kind", BOUND)
def test_what_takes_the_place_of_a_method_or_function_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = CallGuard(net := Net(), inference=True).make_check()
    with monkeypatch.context() as patch:
        BOUND[kind](net, patch)
        assert (change := changes()) is not None
        assert change.reason is FallbackReason.CODE_REPLACED
    assert changes() is None


@pytest.mark.parametrize("name", ["forward", "helper", "halve", "_call_impl", "_slow_forward"])
@pytest.mark.parametrize("own", [False, True])
def test_a_method_that_is_put_back_as_an_attribute_is_the_same(name: str, own: bool) -> None:
    net: Any = Net() if own else nn.Sequential(Net())
    part = net if own else net[0]
    changes, before = CallGuard(net, inference=True).make_check(), getattr(part, name)
    setattr(part, name, lambda x: x)
    assert changes() is not None
    setattr(part, name, before)  # which is in the module now, and not only in its class
    assert changes() is None
    setattr(part, name, types.MethodType(other, part))
    assert changes() is not None
    delattr(part, name)
    assert changes() is None


HARMLESS: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "a method that a call does not run": lambda net, patch: patch.setattr(net, "train", lambda mode: net),
    "__call__ of the instance": lambda net, patch: patch.setattr(net, "__call__", other_function, raising=False),
    "a part compiled": lambda net, patch: net.inner.compile(backend="eager"),
    "data on a part": lambda net, patch: patch.setattr(net.inner, "seen", 1, raising=False),
    "a global number": lambda net, patch: patch.setitem(globals(), "COUNT", 1),
    "another global function": lambda net, patch: patch.setitem(globals(), "decorate", other_function),
    "code of another function": lambda net, patch: patch.setattr(Net.return_input, "__code__", other.__code__),
    "requires_grad": lambda net, patch: net.requires_grad_(False),
    "a mark of a library": lambda net, patch: patch.setattr(net.head, "_is_hf_initialized", True, raising=False),
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_what_no_call_runs_may_change(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = CallGuard(net := Net(), inference=True).make_check()
    HARMLESS[kind](net, monkeypatch)
    assert changes() is None


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def rebuilt(function: types.FunctionType) -> types.FunctionType:
    """Return a function of equal code on other lines, as loading an edited file anew makes it."""
    made = compile("\n" * 5 + Path(__file__).read_text(), "again.py", "exec")
    [code] = [each for each in codes_in(made) if each.co_qualname == function.__qualname__]
    again = types.FunctionType(code, dict(function.__globals__), function.__name__, function.__defaults__)
    again.__kwdefaults__ = dict(function.__kwdefaults__ or {}) or None
    return again


def test_equal_code_that_was_made_anew_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = CallGuard(Net(), inference=True).make_check()
    monkeypatch.setattr(Net, "helper", again := rebuilt(Net.helper))
    assert again.__code__ != FUNCTIONS["a method"][0].__code__  # its lines are others
    assert changes() is None
    monkeypatch.setattr(Inner.forward, "__code__", rebuilt(Inner.forward).__code__)
    monkeypatch.setattr(Inner.forward, "__defaults__", (float("2"),))
    monkeypatch.setattr(Net, "offset", property(lambda self: 1.0))
    assert changes() is None


def test_a_class_that_is_sent_by_value_once_more_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, Any] = {"torch": torch, "nn": nn, "__name__": "__main__"}
    exec(inspect.getsource(double) + inspect.getsource(Inner).replace("x * scale", "doubled(x) * scale"), space)
    model = space["Inner"]()
    changes, written = CallGuard(model, inference=True).make_check(), cloudpickle.dumps(model)
    assert type(cloudpickle.loads(written)) is type(model)  # whose methods it has set anew
    assert changes() is None
    space["doubled"] = other_function
    cloudpickle.loads(cloudpickle.dumps(model))
    assert changes() is not None


SOURCE = """
from torch import nn

class Base(nn.Module):
    def scaled(self, x):
        return x * {factor}

class Loaded(Base):
    width = 8

    def forward(self, x):
        return super().scaled(x)
"""


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], types.ModuleType]]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "loaded_anew.py"

    def load(factor: int) -> types.ModuleType:
        file.write_text(SOURCE.format(factor=factor))
        known = sys.modules.get("loaded_anew")
        return importlib.reload(known) if known else importlib.import_module("loaded_anew")

    yield load
    sys.modules.pop("loaded_anew", None)


def test_a_class_whose_file_was_loaded_anew_is_the_same_unless_its_code_is_another(
    loaded: Callable[[int], types.ModuleType],
) -> None:
    model = loaded(2).Loaded()
    changes = CallGuard(model, inference=True).make_check()
    model.__class__ = loaded(2).Loaded  # as tools for notebooks do
    assert changes() is None
    setattr(type(model), "forward", other)  # noqa: B010
    assert changes() is not None
    model.__class__ = loaded(31).Loaded
    assert changes() is not None


def test_code_differs_by_each_part_of_it() -> None:
    def one(x: int, k: int = 1) -> int:
        return x + k

    def keyword(x: int, *, k: int = 1) -> int:
        return x + k

    def make_closure(by: int) -> Callable[[int], int]:
        return lambda x: x + by

    def recursive() -> Callable[[int], int]:
        def inner(x: int) -> int:
            return inner(x - 1) if x else 0

        return inner

    assert is_same_code(one, types.FunctionType(one.__code__, globals(), "one", (1,)))
    assert not is_same_code(one, types.FunctionType(one.__code__, globals(), "one", (1.0,)))
    assert not is_same_code(one, types.FunctionType(one.__code__, globals(), "one"))
    assert not is_same_code(one, keyword)
    assert is_same_code(make_closure(1), make_closure(1))
    assert not is_same_code(make_closure(1), make_closure(2))
    assert is_same_code(recursive(), recursive())
    assert is_same_code(staticmethod(make_closure(1)), staticmethod(make_closure(1)))
    assert not is_same_code(staticmethod(make_closure(1)), classmethod(make_closure(1)))
    assert is_same_code(functools.partial(one, k=1), functools.partial(one, k=1))
    assert not is_same_code(functools.partial(one, k=1), functools.partial(one, k=2))
    assert not is_same_code(torch.ones(2), torch.ones(2))  # which may be written to


def test_functions_looked_at_are_bounded_and_the_nearest_come_first() -> None:
    space: dict[str, Any] = {"__name__": "many"}
    for number in range(2 * MAX_FUNCTIONS):
        exec(f"def f{number}(x):\n    return f{number + 1}(x)", space)
    found = ReachableCode([space["f0"]], []).functions
    assert len(found) == MAX_FUNCTIONS
    assert found[0] is space["f0"]


def test_a_write_to_one_part_has_no_other_looked_at() -> None:
    guard = CodeGuard(net := nn.Sequential(*(Inner() for _ in range(5))))
    looked_at = []

    class Watched:
        def __init__(self, one: Any) -> None:
            self.one, self.contents, self.owner = one, one.contents, one.owner

        def find_differences(self) -> list[str]:
            looked_at.append(self.owner)
            found: list[str] = self.one.find_differences()
            return found

    guard._find_differences = watch([Watched(one) for one in guard._contents])  # type: ignore[misc]
    net[2].seen = 1
    assert guard.rebound() is None
    assert looked_at == ["Inner"]


def compile_with_eager(call: Callable[..., Any], _plan: Plan) -> Callable[..., Any]:
    """Stand in for a compiler: only Dynamo's tracing can go wrong here."""
    compiled: Callable[..., Any] = torch.compile(call, backend="eager")
    return compiled


ANSWERS: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "forward's code": lambda net, patch: patch.setattr(Inner.forward, "__code__", other.__code__),
    "forward of a part": lambda net, patch: patch.setattr(net.inner, "forward", lambda x: x * 0),
    "_call_impl of a part": lambda net, patch: patch.setattr(net.inner, "_call_impl", lambda x: x * 0, raising=False),
    "a global function": lambda net, patch: patch.setitem(globals(), "call_double", other_function),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_model_answers_until_it_is_put_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, plan = Net().eval(), Plan(backend="inductor")
    decision = make_decision(model, plan, X)
    fast: Any = OptimizedModule(model, decision)
    vars(fast)["_torchwise"] = Dispatcher(model, decision, backend=compile_with_eager)
    with torch.no_grad():
        before = [fast(X) for _ in range(3)].pop()
        with monkeypatch.context() as patch:
            ANSWERS[kind](model, patch)
            assert torch.equal(fast(X), model(X))
            assert not torch.equal(fast(X), before)
        assert torch.equal(fast(X), before)
    assert fast.statistics.optimized == 4
