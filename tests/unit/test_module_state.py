"""State of any kind is found, named, put back in place, and moved on from call to call."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import torchwise
from live_decisions import make_decision
from torchwise.errors import WorkloadError
from torchwise.plan import Plan
from torchwise.runtime.input_writes import InputSnapshot
from torchwise.verify.observe import observe
from torchwise.workload import Example
from torchwise.workload.module_state import GONE, State, from_one_state, kept_state

TOTAL = [0.0]
COUNT = 0


@dataclasses.dataclass
class Memory:
    h: torch.Tensor
    n: int = 0


class Slotted:
    __slots__ = ("__own", "h")

    def __init__(self) -> None:
        self.h, self.__own = torch.zeros(2), 0

    def step(self) -> int:
        self.h, self.__own = self.h + 1, self.__own + 1
        return self.__own


class Stateful(torch.nn.Module):
    """Changes `kept`, of any kind, by `move`, and answers with the value that it read there before."""

    seen = 0

    def __init__(self, kept: Any, move: Callable[[Any], Any]) -> None:
        super().__init__()
        self.kept = kept
        self.move = move

    def forward(self, x: torch.Tensor) -> Any:
        return x + float(self.move(self))


def _grow(m: Any) -> float:
    m.kept = torch.cat([m.kept, m.kept[-1:] + 1])
    return float(m.kept.sum())


def _add_in_place(m: Any) -> float:
    return float(m.kept.add_(1).sum())


def _append(m: Any) -> int:
    m.kept.append(len(m.kept))
    return len(m.kept)


def _count(m: Any) -> int:
    m.kept += 1
    return int(m.kept)


def _global(_: Any) -> float:
    global COUNT
    COUNT += 1
    TOTAL[0] += 1
    return COUNT + TOTAL[0]


def _class(m: Any) -> int:
    type(m).seen += 1
    return type(m).seen


def _add_and_delete(m: Any) -> int:
    if hasattr(m, "extra"):
        del m.extra
        return 1
    m.extra = 2
    return 2


def _dataclass(m: Any) -> float:
    m.kept = dataclasses.replace(m.kept, h=m.kept.h + 1, n=m.kept.n + 1)
    return float(m.kept.h.sum()) + m.kept.n


def _deep(m: Any) -> float:
    m.kept["a"][0].h.mul_(2).add_(1)
    m.kept["a"][0].n += 1
    m.kept["b"] = m.kept.get("b", 0) + 1
    return float(m.kept["a"][0].h.sum()) + m.kept["b"] + m.kept["a"][0].n


def _resize(m: Any) -> float:
    m.kept.resize_(m.kept.numel() + 1).fill_(m.kept.numel())
    return float(m.kept.sum())


def _as_data(m: Any) -> float:
    m.kept.data = torch.ones(m.kept.numel() + 1)
    return float(m.kept.sum())


def _array(m: Any) -> float:
    m.kept += 1
    return float(m.kept.sum())


def _set(m: Any) -> int:
    m.kept.add(len(m.kept))
    return len(m.kept)


def make_closure() -> Callable[[Any], int]:
    n = 0

    def move(_: Any) -> int:
        nonlocal n
        n += 1
        return n

    return move


def with_default(kept: list[int]) -> Callable[[Any], int]:
    def move(_: Any, into: list[int] = kept) -> int:
        into.append(1)
        return len(into)

    return move


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a tensor bound anew": (lambda: torch.zeros(2), lambda m: setattr(m, "kept", m.kept + 1) or m.kept.sum()),
    "a tensor written to": (lambda: torch.zeros(2), _add_in_place),
    "a tensor that grows by cat": (lambda: torch.zeros(1), _grow),
    "a tensor resized": (lambda: torch.zeros(1), _resize),
    "a tensor given other data": (lambda: torch.zeros(1), _as_data),
    "a number": (lambda: 0, _count),
    "a list": (list, _append),
    "a deque of bounded length": (
        lambda: collections.deque([1, 2], maxlen=3),
        lambda m: m.kept.append(m.kept[-1] + 1) or sum(m.kept),
    ),
    "a set": (set, _set),
    "a dict of lists of objects": (lambda: {"a": [Memory(torch.zeros(2))]}, _deep),
    "the order of a dict": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda m: m.kept.move_to_end(next(iter(m.kept))) or next(iter(m.kept.values())),
    ),
    "a dataclass": (lambda: Memory(torch.zeros(2)), _dataclass),
    "an object with slots": (Slotted, lambda m: m.kept.step()),
    "attributes that come and go": (lambda: None, _add_and_delete),
    "an array of NumPy": (lambda: np.zeros(2), _array),
    "bytes": (lambda: bytearray(b"a"), lambda m: m.kept.extend(b"b") or len(m.kept)),
    "an array of numbers": (lambda: array.array("d", [1.0]), lambda m: m.kept.append(2.0) or len(m.kept)),
    "an iterator": (lambda: iter([1, 2, 3, 4, 5, 6]), lambda m: next(m.kept)),
    "a counter": (itertools.count, lambda m: next(m.kept)),
    "Python's random numbers": (lambda: random.Random(0), lambda m: m.kept.random()),
    "NumPy's random numbers": (lambda: np.random.default_rng(0), lambda m: m.kept.random()),
    "older random numbers of NumPy": (lambda: np.random.RandomState(0), lambda m: m.kept.rand()),
    "a generator of PyTorch": (lambda: torch.Generator().manual_seed(0), lambda m: torch.rand((), generator=m.kept)),
    "global variables": (lambda: None, _global),
    "the class": (lambda: None, _class),
    "a closure": (lambda: None, make_closure()),
    "a default": (lambda: None, with_default([])),
    "a partial's list": (lambda: None, functools.partial(lambda into, m: into.append(1) or len(into), [])),
    "an object beside a lock": (
        lambda: {"lock": threading.Lock(), "n": [0]},
        lambda m: m.kept["n"].append(1) or len(m.kept["n"]),
    ),
}


@pytest.fixture(params=[*KINDS])
def model(request: pytest.FixtureRequest) -> Stateful:
    make, move = KINDS[request.param]
    return Stateful(make(), move)


def answers(model: Any, count: int = 3) -> list[float]:
    return [float(model(torch.zeros(()))) for _ in range(count)]


def test_what_calls_change_is_put_back(model: Stateful) -> None:
    with kept_state(model) as state:
        first = answers(model)
        assert state.has_changed()
    assert not State.from_call(model).changes()
    assert not state.changes()
    assert answers(model) == first
    assert len(set(first)) > 1, "the calls must differ, or nothing was shown"


def test_a_timed_call_begins_from_one_state(model: Stateful) -> None:
    call = from_one_state(model, model, (torch.zeros(()),), {})
    assert len({float(call()) for _ in range(4)}) == 1


def test_a_timed_call_begins_from_one_state_whatever_was_called_before_it(model: Stateful) -> None:
    first, second = (from_one_state(model, model, (torch.zeros(()),), {}) for _ in range(2))
    assert len({float(call()) for call in (first, second, first, second)}) == 1


def test_calls_in_a_row_go_on_from_each_other(model: Stateful) -> None:
    example = Example((torch.zeros(()),))
    seen = [observe(model, model, example, seed=0, calls=3) for _ in range(2)]
    values = [[float(leaf) for name, leaf in one.leaves if name.startswith("output")] for one in seen]
    assert values[0] == values[1]
    assert len(set(values[0])) > 1
    assert seen[0].calls == 3


def test_changes_are_named_by_path() -> None:
    model = torch.nn.ModuleDict({"inner": Stateful({"a": [Memory(torch.zeros(2))]}, _deep)})
    given = {"cache": Memory(torch.zeros(1))}
    state = State.from_call(model, (torch.zeros(()),), given)
    model["inner"](torch.zeros(()))
    given["cache"].h.add_(1)
    found = state.changes()
    wanted = ["inner.kept", "inner.kept['a'][0].h", "inner.kept['a'][0].n", "inner.kept['b']", "input [1]['cache'].h"]
    assert sorted(found) == wanted
    del model["inner"].kept
    assert state.changes()["inner.kept['a'][0].n"] == GONE


def test_memory_is_put_back_where_it_was() -> None:
    """A CUDA graph, or a view that somebody holds, knows the memory by its address."""
    model = Stateful(torch.zeros(4), _grow)
    model.alias, model.view = model.kept, model.kept[1:3]
    kept, place = model.kept, model.kept.data_ptr()
    with kept_state(model):
        model.view.fill_(5)
        model(torch.zeros(()))
    assert model.kept is model.alias is kept
    assert model.kept.data_ptr() == place
    model.view.fill_(7)
    assert model.kept.tolist() == [0, 7, 7, 0]


def test_nothing_is_written_where_nothing_changed() -> None:
    model = Stateful(torch.zeros(2), lambda m: 0)
    model.weight = torch.nn.Parameter(torch.ones(2))
    with kept_state(model):
        model(torch.zeros(()))
    assert model.kept._version == model.weight._version == 0


def _stream() -> Iterator[float]:
    yield from (0.1, 0.2, 0.3, 0.4, 0.5)


def test_what_cannot_be_put_back_is_named_by_type_and_attribute() -> None:
    model = torch.nn.Sequential(Stateful(_stream(), lambda m: next(m.kept)))
    next(model[0].kept)
    state = State.from_call(model)
    state.restore()  # nothing went on
    model(torch.zeros(()))
    model[0].n = 1
    with pytest.raises(WorkloadError, match=r"0\.kept, an object of type generator"):
        state.restore()
    assert not hasattr(model[0], "n"), "all else is put back nevertheless"


@torch.library.custom_op("state_test::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


triple.register_fake(torch.empty_like)


@pytest.mark.parametrize(
    "function",
    [
        triple,
        torch.ops.aten.sin.default,
        torch.ops.aten.sin,
        torch.compile(torch.sin, backend="eager"),
        torch.vmap(torch.sin),
        torch.func.grad(torch.sum),
        torch.jit.trace(torch.sin, torch.ones(2), check_trace=False),
    ],
    ids=["custom_op", "overload", "packet", "compiled", "vmap", "grad", "traced"],
)
def test_caches_that_pytorch_keeps_on_a_function_are_no_state(function: Callable[..., Any]) -> None:
    model = Stateful(function, lambda m: m.kept(torch.ones(2)).numel())
    for cache in [getattr(part, "_dispatch_cache", {}) for part in (function, getattr(function, "_opoverload", None))]:
        cache.clear()  # the next call fills it
    state = State.from_call(model, (torch.ones(2),))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.ones(2))
    assert state.changes() == {}


def test_parameters_that_a_call_writes_are_put_back() -> None:
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()
    with kept_state(model), torch.no_grad():
        model.weight.renorm_(2, 0, 0.1)
    assert torch.equal(model.weight, before)


def test_parameters_too_large_to_keep_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchwise.workload.module_state.MAX_KEPT", 8)
    model = torch.nn.Linear(2, 2)
    with kept_state(model):
        pass
    state = State.from_call(model)
    with torch.no_grad():
        model.weight.add_(1)
    with pytest.raises(WorkloadError, match="parameter weight"):
        state.restore()


def test_a_lazy_module_is_made_for_good_by_its_first_call() -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(3))
    with kept_state(model):
        model(torch.zeros(1, 2))
    assert model(torch.zeros(1, 2)).shape == (1, 3)


def test_inference_tensors_are_put_back() -> None:
    with torch.inference_mode():
        model = Stateful(torch.zeros(2), _add_in_place)
    state = State.from_call(model)
    with torch.inference_mode():
        model(torch.zeros(()))
    state.restore()
    assert model.kept.tolist() == [0, 0]


class HoldsAStep(torch.nn.Module):
    def __init__(self, step: Any) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.step(x, y)


@pytest.mark.parametrize("hold", [lambda step: lambda x, y: step(x, y), HoldsAStep, lambda step: step])
def test_the_state_behind_an_optimised_step_is_found(hold: Callable[[Any], Any]) -> None:
    model, x, y = torch.nn.Linear(4, 2), torch.ones(3, 4), torch.zeros(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = torchwise.TrainStep(model, torch.nn.functional.mse_loss, optimizer)
    held = hold(torchwise.apply(step, make_decision(step, Plan(optimizer="fused"), x, y)))
    before, state = model.weight.detach().clone(), State.from_call(held, (x, y))
    held(x, y)
    assert not torch.equal(model.weight, before)
    state.restore()
    assert torch.equal(model.weight, before)
    assert not optimizer.state
    undo = InputSnapshot(held, (x, y), {})
    held(x, y)
    undo()
    assert torch.equal(model.weight, before)


def test_the_state_behind_an_optimised_module_is_found() -> None:
    model = Stateful(0, lambda m: setattr(m, "kept", m.kept + 1) or 0.0).eval()
    fast = torchwise.apply(model, make_decision(model, Plan(threads=2), torch.ones(1)))
    state = State.from_call(lambda x: fast(x))
    fast(torch.ones(1))
    assert model.kept == 1
    state.restore()
    assert model.kept == 0


def test_a_function_that_wraps_an_optimised_one_leads_to_no_state_of_torchwise() -> None:
    model = Stateful(0, lambda m: setattr(m, "kept", m.kept + 1) or 0.0).eval()
    fast = torchwise.apply(model, make_decision(model, Plan(threads=2), torch.ones(1)))

    @functools.wraps(fast)
    def call(x: torch.Tensor) -> Any:
        return fast(x)

    state = State.from_call(call)
    fast(torch.ones(1))
    calls = fast.statistics.calls
    state.restore()
    assert (model.kept, fast.statistics.calls, calls) == (0, 1, 1)
