"""A hook on the classes that have a plan: calls of all other modules go straight to PyTorch."""

from __future__ import annotations

import contextlib
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchwise._torch import call_hook
from torchwise._torch.call_hook import WATCHED_CALL, CallHook, set_call_hook
from torchwise._torch.modules import MODULE_CALL
from torchwise.compile.forward_entry import calls_forward_alone
from torchwise.workload.identity import structure

X = torch.ones(2, 2)
LATE = frozenset({"Late"})


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@contextlib.contextmanager
def hook(*names: str) -> Iterator[list[Any]]:
    """Hook the classes of these names, and list what the hook answers."""
    found: list[Any] = []

    def answer(thing: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found.append(thing)
        return run(*args, **kwargs)

    former = set_call_hook(CallHook(answer, frozenset(names)))
    try:
        yield found
    finally:
        set_call_hook(former)
    assert torch.nn.Module.__call__ is MODULE_CALL
    assert "__call__" not in vars(Net)
    assert "__init_subclass__" not in vars(torch.nn.Module)
    assert torch.nn.Module.__init__.__code__.co_name != "notice_module"


@pytest.fixture
def answered() -> Iterator[list[Any]]:
    with hook("Net") as found:
        yield found


def list_calls(call: Callable[..., object], *args: object) -> list[str]:
    """List the Python functions that a call enters."""
    entered: list[str] = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        call(*args)
    finally:
        sys.setprofile(None)
    return entered


def define(name: str, *bases: type, **members: Any) -> Any:
    return type(name, bases, {"__qualname__": name, "__module__": __name__, **members})


def test_modules_of_other_classes_are_called_as_without_a_hook(answered: list[Any]) -> None:
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    net = Net()
    net(X)
    hooked = list_calls(other, X)
    set_call_hook(None)
    assert hooked == list_calls(other, X)
    assert answered == [net]


def test_a_class_that_is_defined_later_is_hooked_and_so_are_those_derived_from_it() -> None:
    with hook("Late") as answered:
        late = define("Late", torch.nn.Module, forward=Net.forward)
        derived, other = define("Derived", late), define("Other", torch.nn.Module, forward=Net.forward)
        things = [late(), derived(), other()]
        assert [float(thing(X).sum()) for thing in things] == [8.0] * 3
    assert answered == things[:2]


class Registry(torch.nn.Module):
    def __init_subclass__(cls) -> None:
        """Tell PyTorch nothing."""


class Mixin:
    def __init_subclass__(cls) -> None:
        """Tell nobody of a class, though modules are made of it."""


@pytest.mark.parametrize("bases", [(Registry,), (Mixin, torch.nn.Module), (torch.nn.Module,)], ids=str)
def test_a_class_that_nobody_was_told_of_is_hooked_once_it_has_a_module(bases: tuple[type, ...]) -> None:
    with hook("Late") as answered:
        late = define("Late" if len(bases) > 1 or bases == (Registry,) else "Early", *bases, forward=Net.forward)
        late.__qualname__ = "Late"
        thing, other = late(), torch.nn.ReLU()
        assert [float(thing(X).sum()), float(other(X).sum())] == [8.0, 4.0]
    assert answered == [thing]
    assert "__call__" not in vars(late)


class Strict(type):
    def __setattr__(cls, name: str, value: object) -> None:
        raise TypeError(f"{name} stays")


class Sticky(type):
    def __delattr__(cls, name: str) -> None:
        raise TypeError(f"{name} stays")


@pytest.mark.parametrize("kind", [Strict, Sticky])
def test_a_class_that_cannot_be_changed_is_defined_and_hooked_all_the_same(kind: Any) -> None:
    with hook("Late") as answered:
        members = {"__qualname__": "Late", "__module__": __name__, "forward": Net.forward}
        thing = kind("Late", (torch.nn.Module,), members)()
        assert float(thing(X).sum()) == 8.0
    assert answered == [thing]
    assert float(thing(X).sum()) == 8.0
    assert answered == [thing]


@pytest.fixture
def put_notice() -> Iterator[Callable[[list[str]], Any]]:
    """Put an `__init_subclass__` on all modules that lists their names, and goes on to the one before."""

    def put(told: list[str]) -> Any:
        below = vars(torch.nn.Module).get("__init_subclass__")

        def notice(cls: type) -> None:
            told.append(cls.__name__)
            if below is not None:
                below.__get__(None, cls)()

        torch.nn.Module.__init_subclass__ = classmethod(notice)
        return vars(torch.nn.Module)["__init_subclass__"]

    yield put
    del torch.nn.Module.__init_subclass__


@pytest.mark.parametrize("puts_over", [False, True])
def test_what_a_library_has_put_on_modules_is_called_and_stays(puts_over: bool, put_notice: Any) -> None:
    told: list[str] = []
    answered: list[Any] = []

    def answer(thing: Any, run: Callable[..., Any], args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
        answered.append(thing)
        return run(*args)

    before, things = None if puts_over else put_notice(told), []
    for _ in range(2):
        former = set_call_hook(CallHook(answer, LATE))
        before = before or put_notice(told)
        things.append(define("Late", torch.nn.Module, forward=Net.forward)())
        assert float(things[-1](X).sum()) == 8.0
        set_call_hook(former)
        assert vars(torch.nn.Module)["__init_subclass__"] is before
    define("Later", torch.nn.Module)
    assert told == ["Late", "Late", "Later"]
    assert answered == things


def test_a_hooked_class_may_go() -> None:
    with hook("Late"):
        kept = weakref.ref(define("Late", torch.nn.Module, forward=Net.forward))
        gc.collect()
        assert kept() is None


def test_a_hooked_class_without_source_is_the_same_code() -> None:
    made = define("Late", torch.nn.Module, forward=Net.forward)()
    before = structure(made)
    with hook("Late"):
        assert WATCHED_CALL in vars(type(made)).values()
        assert structure(made) == before


def test_a_derived_class_with_a_call_of_its_own_is_answered_once(answered: list[Any]) -> None:
    def call(self: Any, x: torch.Tensor) -> Any:
        return super(own, self).__call__(2 * x)

    own: Any = define("Derived", Net, __call__=call)
    thing = own()
    assert float(thing(X).sum()) == 12.0
    assert answered == [thing]
    assert torch.nn.Module.__call__ is MODULE_CALL


def test_a_call_of_its_own_that_prepares_inputs_is_hooked_behind_it() -> None:
    def call(self: Any, x: torch.Tensor) -> Any:
        return torch.nn.Module.__call__(self, 2 * x)

    with hook("Own") as answered:
        thing = define("Own", torch.nn.Module, __call__=call, forward=Net.forward)()
        assert float(thing(X).sum()) == 12.0
    assert answered == [thing]


def test_a_graph_is_hooked_though_its_class_gets_its_call_later() -> None:
    with hook("GraphModule.__new__.<locals>.GraphModuleImpl") as answered:
        graph = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
        assert graph(X) is not None
    assert answered == [graph]


def test_a_hooked_class_is_the_same_code_and_is_called_by_its_forward_alone(answered: list[Any]) -> None:
    net = Net()
    hooked = structure(net)
    assert WATCHED_CALL in vars(Net).values()
    assert calls_forward_alone(net)
    set_call_hook(None)
    assert structure(net) == hooked


def test_what_a_hooked_class_is_sent_with_needs_no_torchwise(answered: list[Any]) -> None:
    sent = pickle.dumps(vars(Net)["__call__"])
    assert b"torchwise" not in sent
    assert pickle.loads(sent) is MODULE_CALL


def test_a_hook_for_all_inside_one_for_classes_ends_with_it(answered: list[Any]) -> None:
    other, inner = torch.nn.ReLU(), []
    former = set_call_hook(CallHook(lambda thing, run, args, kwargs: (inner.append(thing), run(*args, **kwargs))[1]))
    other(X)
    set_call_hook(former)
    net = Net()
    assert [float(net(X).sum()), float(other(X).sum())] == [8.0, 4.0]
    assert (answered, inner) == ([net], [other])
    assert torch.nn.Module.__call__ is MODULE_CALL


def test_a_hook_for_classes_loads_no_compiler() -> None:
    code = (
        "import sys, torch\nfrom torchwise._torch.call_hook import CallHook, set_call_hook\n"
        "set_call_hook(CallHook(print, frozenset({'Net'})))\nassert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_dynamo_traces_through_a_hooked_class(answered: list[Any]) -> None:
    net = torch.nn.Sequential(Net())
    compiled = torch.compile(lambda x: net(x), backend="eager", fullgraph=True)
    assert float(compiled(X).sum()) == 8.0
    assert answered == []
    assert call_hook._watched
