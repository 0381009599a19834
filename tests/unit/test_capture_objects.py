"""Objects that hold tensors as inputs of a captured call: the logic, with a stand-in for the graph."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from torchwise._torch import native
from torchwise.compile.cuda_graphs.object_contents import ObjectContents
from torchwise.compile.cuda_graphs.object_inputs import WithObjects, _Object
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.module_state import State

pytestmark = pytest.mark.usefixtures("checks")


class Cache:
    def __init__(self) -> None:
        self.k, self.at = torch.zeros(4, 2), torch.tensor(0)
        self.layers = [Layer(), Layer()]
        self.length, self.table = 4, {"seen": torch.zeros(1)}


class Layer:
    def __init__(self) -> None:
        self.keys = torch.zeros(2)


class Replaying:
    """Calls once for each kind of call, on copies of the tensors, and replays that by copying, as a graph does.

    A replay knows the objects of the recording alone, as they were.
    """

    owner: Any = None

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.recorded: list[Any] = []
        self._graphs: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = repr(pytree.map_tensors(lambda t: (t.shape, t.dtype), (args, kwargs)))
        if key not in self._graphs:
            self.recorded.append(key)
            self._graphs[key] = pytree.clone((args, kwargs)), [copy_object(one.thing) for one in self.owner._objects]
        static, objects = self._graphs[key]
        for ours, theirs in zip(pytree.tensors(static), pytree.tensors((args, kwargs)), strict=True):
            ours.copy_(theirs)
        given, self.owner._objects = self.owner._objects, objects
        outputs = pytree.map_tensors(torch.clone, self._call(*static[0], **static[1]))
        self.owner._objects = given
        for ours, theirs in zip(pytree.tensors(static), pytree.tensors((args, kwargs)), strict=True):
            theirs.copy_(ours)
        return outputs

    def get_bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        return self

    def close(self) -> None:
        self._graphs.clear()


def copy_object(thing: Any) -> _Object:
    copied = copy.deepcopy(thing)
    return _Object(copied, ObjectContents(copied, type(thing).__qualname__))


def capture_with_objects(call: Callable[..., Any]) -> tuple[WithObjects, Replaying]:
    made: list[Replaying] = []

    def capture(inner: Callable[..., Any]) -> Replaying:
        made.append(Replaying(inner))
        return made[0]

    found = WithObjects(call, capture)
    made[0].owner = found
    return found, made[0]


def step(x: torch.Tensor, cache: Cache, *, scale: float = 1.0) -> torch.Tensor:
    cache.k[cache.at % cache.length] = x * scale
    cache.at += 1
    cache.layers[1].keys = cache.layers[1].keys + x
    cache.table["seen"].add_(1)
    return cache.k.sum(0) + cache.layers[1].keys


def state_of(cache: Cache) -> list[torch.Tensor]:
    return [cache.k, cache.at, *(layer.keys for layer in cache.layers), cache.table["seen"]]


def test_a_step_with_a_cache_object_answers_and_moves_it_on_as_the_call_does() -> None:
    fast, graph = capture_with_objects(step)
    for caches in ((Cache(), Cache()), (Cache(), Cache())):  # a second conversation
        for number in range(6):
            x = torch.full((2,), float(number))
            assert torch.equal(fast(x, caches[0], scale=2.0), step(x, caches[1], scale=2.0))
            assert all(map(torch.equal, state_of(caches[0]), state_of(caches[1])))
    assert len(graph.recorded) == 1, "another object of the same kind is no new call"


def step_that_returns(x: torch.Tensor, cache: Cache) -> dict[str, Any]:
    return {"y": step(x, cache), "cache": cache, "nested": [cache, None]}


def test_conversations_in_turn_get_answers_and_caches_of_their_own() -> None:
    fast, graph = capture_with_objects(step_that_returns)
    ours, plain = [Cache(), Cache()], [Cache(), Cache()]
    for number in (0, 1, 0, 0, 1, 1, 0):
        x = torch.full((2,), 1.0 + 5 * number)
        answer = fast(x, ours[number])
        assert torch.equal(answer["y"], step(x, plain[number]))
        assert answer["cache"] is answer["nested"][0] is ours[number], "and not that of the recording"
        assert all(map(torch.equal, state_of(ours[number]), state_of(plain[number])))
    assert len(graph.recorded) == 1


def test_parts_that_were_put_in_the_place_of_others_are_read() -> None:
    fast, _ = capture_with_objects(step)
    ours, plain = Cache(), Cache()
    other = [Layer(), Layer()]
    other[1].keys = torch.full((2,), 7.0)  # of another conversation
    for swap in (
        lambda c: None,
        lambda c: setattr(c, "layers", copy.deepcopy(other)),
        lambda c: c.layers.__setitem__(1, copy.deepcopy(other[1])),
        lambda c: setattr(c, "table", {"seen": torch.ones(1)}),
    ):
        swap(ours)
        swap(plain)
        assert torch.equal(fast(torch.ones(2), ours), step(torch.ones(2), plain))
        assert all(map(torch.equal, state_of(ours), state_of(plain)))


class Keys:
    """A cache, or a part of one."""

    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)

    def read(self) -> Any:
        return self.k


class DoubledKeys(Keys):
    def read(self) -> Any:
        return 2 * self.k


class NamedKeys(dict[str, Any]):
    pass


class BySlot:
    __slots__ = ("v",)


class SlottedKeys(BySlot):
    pass


def make_named(k: float) -> NamedKeys:
    made = NamedKeys(v=torch.ones(2))
    made.k = torch.full((2,), k)  # type: ignore[attr-defined]
    return made


ONE, FIVE = torch.full((2,), 1.0), torch.full((2,), 5.0)


@pytest.mark.parametrize(
    ("first", "second", "call"),
    [
        (Keys(k=ONE, v=FIVE), Keys(v=FIVE, k=ONE), lambda x, c: x * c.k - c.v),
        (Keys(table={"a": ONE}), Keys(table={"b": ONE}), lambda x, c: x * c.table.get("a", 7)),
        (Keys(layer=Keys(k=ONE)), Keys(layer=DoubledKeys(k=ONE)), lambda x, c: x * c.layer.read()),
        (Keys(scale=2, shift=3, k=ONE), Keys(shift=2, scale=3, k=ONE), lambda x, c: x * c.scale + c.shift),
        (make_named(1.0), make_named(4.0), lambda x, c: x * c.k + c["v"]),
    ],
    ids=["order", "names", "types", "values", "attributes of a dict"],
)
def test_objects_of_other_structure_are_told_apart(first: Any, second: Any, call: Callable[..., Any]) -> None:
    fast, _ = capture_with_objects(call)
    for thing in (first, second):
        assert torch.equal(fast(torch.ones(2), thing), call(torch.ones(2), thing))


def fill_part(x: torch.Tensor, cache: Keys) -> torch.Tensor:
    if cache.layer is None:
        cache.layer = Keys(k=torch.zeros(2))
    cache.layer.k += x
    return cache.layer.k.clone()


def test_a_part_that_a_call_puts_in_the_place_of_none_is_read_in_each_conversation() -> None:
    fast, graph = capture_with_objects(fill_part)
    ours, plain = ([Keys(layer=None), Keys(layer=None)] for _ in range(2))
    for number in (0, 1, 0, 1, 1):
        x = torch.full((2,), 1.0 + number)
        assert torch.equal(fast(x, ours[number]), fill_part(x, plain[number]))
    assert len(graph.recorded) == 1


def test_a_value_of_another_name_is_no_error() -> None:
    fast, _ = capture_with_objects(lambda x, c: x * c.k + c.table.get("a", 7))
    cache = Keys(k=torch.ones(2), table={"a": 1})
    fast(torch.ones(2), cache)
    del cache.table["a"]
    cache.table["b"] = 1
    assert torch.equal(fast(torch.ones(2), cache), torch.full((2,), 8.0))


def move(x: torch.Tensor, one: Keys, other: Keys) -> torch.Tensor:
    one.k = one.k + x
    return other.k * 1


def test_objects_that_share_parts_are_read_as_they_are() -> None:
    fast, _ = capture_with_objects(move)
    for _ in range(2):
        one, other = Keys(k=torch.ones(2)), Keys(k=torch.ones(2))
        assert torch.equal(fast(torch.ones(2), one, other), torch.ones(2))
        assert torch.equal(fast(torch.ones(2), one, one), torch.full((2,), 3.0))


def test_an_object_that_its_parts_lead_back_to_is_freed() -> None:
    fast, _ = capture_with_objects(step)
    for lead_back in (lambda c: setattr(c.layers[0], "owner", c), lambda c: setattr(c, "read", c.__init__)):
        cache: Cache | None = Cache()
        lead_back(cache)
        fast(torch.ones(2), cache)
        freed = weakref.ref(cache)
        cache = None
        gc.collect()
        assert freed() is None


def test_an_object_keeps_memory_of_its_own_where_outputs_are_borrowed() -> None:
    def capture(inner: Callable[..., Any]) -> Any:
        graph = Replaying(inner)
        memory: list[Any] = []

        def borrow(*args: Any, **kwargs: Any) -> Any:
            outputs = graph(*args, **kwargs)
            if not memory:
                memory.append(outputs)
            for mine, new in zip(pytree.tensors(memory[0]), pytree.tensors(outputs), strict=True):
                mine.copy_(new)
            return memory[0]

        borrow.graph, borrow.close = graph, graph.close  # type: ignore[attr-defined]
        return borrow

    fast = WithObjects(move, capture, borrow=True)
    fast._captured.graph.owner = fast  # type: ignore[attr-defined]
    ours, other = [Keys(k=torch.zeros(2)), Keys(k=torch.zeros(2))], Keys(k=torch.zeros(2))
    for number, one in enumerate(ours):
        fast(torch.full((2,), 1.0 + number), one, other)
    assert [float(one.k[0]) for one in ours] == [1.0, 2.0]


class Lazy:
    """A cache that allocates its memory at the first call."""

    def __init__(self) -> None:
        self.k: torch.Tensor | None = None
        self.is_filled, self.length = False, torch.tensor(0)


def fill(x: torch.Tensor, cache: Lazy) -> torch.Tensor:
    if cache.k is None:
        cache.k, cache.is_filled = torch.zeros(4, 2), True
    cache.k[cache.length] = x
    cache.length += 1
    return cache.k.sum(0)


def test_a_call_that_fills_an_empty_object_runs_as_it_is_and_those_after_it_are_captured() -> None:
    fast, graph = capture_with_objects(fill)
    for _ in range(2):  # a second conversation
        ours, plain = Lazy(), Lazy()
        for number in range(3):
            x = torch.full((2,), float(number))
            assert torch.equal(fast(x, ours), fill(x, plain))
    assert ours.k is not None
    assert len(graph.recorded) == 1


class Settings:
    def __init__(self) -> None:
        self.scale, self.mask = 2.0, None


def test_an_object_that_stays_without_tensors_keeps_no_call_from_being_captured() -> None:
    fast, graph = capture_with_objects(lambda x, settings, cache: step(x, cache) * settings.scale)
    ours, plain = Cache(), Cache()
    for _ in range(3):
        assert torch.equal(fast(torch.ones(2), Settings(), ours), step(torch.ones(2), plain) * 2)
    assert len(graph.recorded) == 1


def test_a_tensor_that_the_call_puts_in_place_is_a_new_one_each_time() -> None:
    fast, _ = capture_with_objects(step)
    cache, held = Cache(), []
    for _ in range(3):
        fast(torch.full((2,), 1.0), cache)
        held.append(cache.layers[1].keys)
    assert [float(keys[0]) for keys in held] == [1.0, 2.0, 3.0]


def test_an_object_that_was_reset_or_rebuilt_is_read_as_it_is() -> None:
    fast, _ = capture_with_objects(step)
    ours, plain = Cache(), Cache()
    for reset in (
        lambda c: c.k.zero_(),
        lambda c: setattr(c, "k", torch.ones(4, 2)),
        lambda c: c.layers.append(Layer()),
    ):
        for _ in range(2):
            assert torch.equal(fast(torch.ones(2), ours), step(torch.ones(2), plain))
        reset(ours)
        reset(plain)
    assert torch.equal(fast(torch.ones(2), ours), step(torch.ones(2), plain))


def test_what_is_no_tensor_in_an_object_is_part_of_the_signature() -> None:
    fast, graph = capture_with_objects(step)
    ours, plain = Cache(), Cache()
    for length in (4, 3):
        ours.length = plain.length = length
        for _ in range(5):
            assert torch.equal(fast(torch.ones(2), ours), step(torch.ones(2), plain))
    assert len(graph.recorded) == 2


def count(x: torch.Tensor, cache: Cache) -> torch.Tensor:
    cache.length += 1
    return x * cache.length


def grow(x: torch.Tensor, cache: Cache) -> torch.Tensor:
    cache.k = torch.cat([cache.k, x[None]])
    return cache.k.sum(0)


def append(x: torch.Tensor, cache: Cache) -> torch.Tensor:
    cache.layers.append(Layer())
    return x


@pytest.mark.parametrize(
    ("call", "said"),
    [(count, "more than tensors"), (grow, r"Cache\.k from shape \(4, 2\) to"), (append, "more than tensors")],
)
def test_calls_that_no_replay_could_repeat_are_refused_and_leave_the_object(
    call: Callable[..., Any], said: str
) -> None:
    fast, _ = capture_with_objects(call)
    cache = Cache()
    state = State.from_call(cache)
    with pytest.raises(UnsupportedError, match=said):
        fast(torch.ones(2), cache)
    assert not state.has_changed()


def test_what_a_graph_cannot_look_into_is_named() -> None:
    cache = Cache()
    cache.pair = (torch.zeros(1), torch.zeros(1))
    with pytest.raises(UnsupportedError, match=r"Cache\.pair is of type tuple"):
        capture_with_objects(step)[0](torch.ones(2), cache)
    slotted = SlottedKeys()
    slotted.k, slotted.v = torch.ones(2), torch.ones(2)  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="SlottedKeys is of type SlottedKeys"):
        capture_with_objects(step)[0](torch.ones(2), slotted)
    cache.pair = threading.Lock()
    with pytest.raises(UnsupportedError, match=r"Cache\.pair is of type lock"):
        capture_with_objects(step)[0](torch.ones(2), cache)


def test_calls_without_objects_take_the_way_that_they_took() -> None:
    fast, graph = capture_with_objects(lambda x, name: x * 2)
    assert torch.equal(fast(torch.ones(2), "object"), 2 * torch.ones(2))
    assert fast.get_bypass((torch.ones(2), "object"), {}) is graph


def change_value(cache: Any) -> None:
    cache.length = 2


def change_item(cache: Any) -> None:
    cache.table["factor"] = 3.0


def change_item_back_and_forth(cache: Any) -> None:
    cache.table["factor"] = 3.0
    del cache.table["factor"]


def replace_part(cache: Any) -> None:
    cache.layers[1] = Layer()
    cache.layers[1].keys = torch.full((2,), 9.0)


def replace_parts(cache: Any) -> None:
    cache.layers = [Layer(), Layer()]


def add_part(cache: Any) -> None:
    cache.layers.insert(1, Layer())


def replace_tensor(cache: Any) -> None:
    cache.k = torch.full((4, 2), 5.0)


def share_memory(cache: Any) -> None:
    cache.layers[0].keys = cache.layers[1].keys


class DoublingCache(Cache):
    @property
    def scale(self) -> float:
        return 2.0


def replace_attributes(cache: Any) -> None:
    cache.__dict__ = Cache().__dict__


def replace_attributes_of_a_part(cache: Any) -> None:
    cache.layers[1].__dict__ = {"keys": torch.full((2,), 9.0)}


def replace_class(cache: Any) -> None:
    cache.__class__ = DoublingCache


def widen(cache: Any) -> None:
    cache.k, cache.length = torch.zeros(6, 2), 6


def scaled_step(x: torch.Tensor, cache: Any, *, scale: float = 1.0) -> dict[str, Any]:
    factor = cache.table.get("factor", 1.0) * getattr(cache, "scale", 1.0)
    return {"y": step(x, cache, scale=scale * factor), "cache": cache, "none": None}


@pytest.mark.parametrize(
    "change",
    [
        *(change_value, change_item, change_item_back_and_forth, replace_part, replace_parts, add_part),
        *(replace_tensor, share_memory, widen, replace_attributes, replace_attributes_of_a_part, replace_class),
    ],
)
def test_the_fast_path_answers_as_the_call_whatever_happens_to_the_object(change: Callable[[Any], None]) -> None:
    fast, _ = capture_with_objects(scaled_step)
    ours, plain = Cache(), Cache()
    scaled_step(torch.ones(2), plain)
    fast(torch.ones(2), ours)
    quick = fast.get_bypass((torch.ones(2), ours), {})
    assert quick is not fast
    for number in range(9):
        if number == 3:
            change(ours)
            change(plain)
        x = torch.full((2,), float(number))
        answer = quick(x, ours) if number != 6 else quick(x, ours, scale=2.0)
        assert torch.equal(answer["y"], scaled_step(x, plain, scale=1.0 if number != 6 else 2.0)["y"])
        assert answer["cache"] is ours
        assert answer["none"] is None
        assert all(map(torch.equal, state_of(ours), state_of(plain)))


def test_the_fast_path_takes_conversations_in_turn() -> None:
    fast, graph = capture_with_objects(scaled_step)
    ours, plain = [Cache(), Cache()], [Cache(), Cache()]
    scaled_step(torch.ones(2), plain[0])
    fast(torch.ones(2), ours[0])
    quick = fast.get_bypass((torch.ones(2), ours[0]), {})
    for number in (0, 1, 0, 0, 1, 1, 0):
        x = torch.full((2,), 1.0 + 5 * number)
        answer = quick(x, ours[number])
        assert torch.equal(answer["y"], scaled_step(x, plain[number])["y"])
        assert answer["cache"] is ours[number]
        assert all(map(torch.equal, state_of(ours[number]), state_of(plain[number])))
    assert len(graph.recorded) == 1


def test_compiled_checks_read_an_untouched_object_once(native_checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load_checks", lambda: native_checks)
    fast, _ = capture_with_objects(scaled_step)
    cache = Cache()
    fast(torch.ones(2), cache)
    quick = fast.get_bypass((torch.ones(2), cache), {})
    own, read = fast._known[id(cache)][1], []
    values = ObjectContents.values
    monkeypatch.setattr(ObjectContents, "values", lambda contents: read.append(contents is own) or values(contents))
    for _ in range(5):  # each of which assigns a tensor in the object's place
        quick(torch.ones(2), cache)
    assert not any(read)
    cache.length = 2
    quick(torch.ones(2), cache)
    assert any(read)


class Answer(dict[str, Any]):
    """A kind of dict that PyTorch does not know."""


@pytest.mark.parametrize("containers", [lambda y, c: Answer(y=y, c=c), lambda y, c: (c, [y, {"a": y, "n": 3}], "text")])
def test_outputs_have_their_containers(containers: Callable[..., Any]) -> None:
    fast, _ = capture_with_objects(lambda x, cache: containers(step(x, cache), cache))
    ours, plain = Cache(), Cache()
    for number in range(3):
        x = torch.full((2,), float(number))
        answer, right = fast(x, ours), containers(step(x, plain), ours)
        assert type(answer) is type(right)
        assert pytree.form(answer) == pytree.form(right)
        for (name, one), (other, wanted) in zip(*map(pytree.list_named_leaves, (answer, right)), strict=True):
            assert name == other
            assert torch.equal(one, wanted) if isinstance(one, torch.Tensor) else one is wanted or one == wanted
