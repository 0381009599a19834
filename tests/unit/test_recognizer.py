"""Calls recognised without their signature: never one for another."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import torchwise
from live_decisions import make_decision
from torchwise.compile import make_recognizer, signature_of
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.runtime import call_guard, dispatch
from torchwise.workload import Example
from torchwise.workload.identity import describe_example

pytestmark = pytest.mark.usefixtures("checks")


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    with torch.no_grad():
        yield


class Sub(torch.Tensor):
    pass


X = torch.randn(4, 4)
LIKE: dict[str, Callable[[], Any]] = {
    "same": lambda: X,
    "fresh": lambda: torch.randn(4, 4),
    "shifted": lambda: torch.randn(17)[1:].view(4, 4),
    "transposed": lambda: torch.randn(4, 4).t(),
    "longer": lambda: torch.randn(5, 4),
    "flat": lambda: torch.randn(16),
    "expanded": lambda: torch.randn(1, 4).expand(4, 4),
    "double": lambda: torch.randn(4, 4).double(),
    "complex": lambda: torch.randn(4, 4, dtype=torch.complex64),
    "conjugated": lambda: torch.randn(4, 4, dtype=torch.complex64).conj(),
    "negated": lambda: torch._neg_view(torch.randn(4, 4)),
    "parameter": lambda: torch.nn.Parameter(torch.randn(4, 4), requires_grad=False),
    "subclass": lambda: torch.randn(4, 4).as_subclass(Sub),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "meta": lambda: torch.empty(4, 4, device="meta"),
    "one": lambda: 1,
    "1.0": lambda: 1.0,
    "true": lambda: True,
    "zero": lambda: 0.0,
    "-0.0": lambda: -0.0,
    "text": lambda: "1",
    "none": lambda: None,
}


WAYS: dict[str, Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "alone": lambda value: ((value,), {}),
    "before a number": lambda value: ((value, 1.0), {}),
    "before a text": lambda value: ((value, "y"), {}),
    "by name": lambda value: ((), {"x": value}),
    "in a list": lambda value: (([value],), {}),
    "in a tuple": lambda value: (((value, 2),), {}),
    "in a dict": lambda value: ((X, {"x": value, "y": None}), {}),
    "deep": lambda value: ((), {"past": (([X.clone()], [value]), ())}),
}
"""The places of a value: positional arguments and named ones."""


@pytest.mark.parametrize("way", WAYS)
def test_what_is_recognised_has_the_very_signature(way: str) -> None:
    given = [WAYS[way](make()) for make in LIKE.values()]
    recognised = 0
    for seen, call in itertools.product(given, repeat=2):
        try:
            recognizer = make_recognizer(*seen)
        except UnsupportedError:
            continue
        if recognizer(*call):
            recognised += 1
            assert signature_of(*seen) == signature_of(*call)
    assert recognised > 10


def test_a_value_is_recognised_only_in_the_containers_that_it_was_seen_in() -> None:
    ways = {name: way(X.clone()) for name, way in WAYS.items()}
    for (seen, first), (other, second) in itertools.product(ways.items(), repeat=2):
        assert make_recognizer(*first)(*second) is (seen == other)
        assert (signature_of(*first) == signature_of(*second)) is (seen == other)


A, B, C = torch.ones(3), torch.ones(3), torch.ones(3)
SHAPED: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (([A, A], [C]), {}),
    (([A, B], [C]), {}),
    (([A], [B, C]), {}),
    (([A, B, C], []), {}),
    (((A, B), [C]), {}),
    (([A, [B]], C), {}),
    (({"a": A, "b": B}, C), {}),
    (({"b": A, "a": B}, C), {}),
    (({"a": A, "c": B}, C), {}),
    (({"a": A}, B, C), {}),
    (([A, B],), {"a": C}),
    (([A, B],), {"b": C}),
    (([A, B, None], [C]), {}),
    (([A, B, 1], [C]), {}),
    (([A, B, 1.0], [C]), {}),
    (([A, B, True], [C]), {}),
    ((A, B, C), {}),
    ((A, B), {"a": C}),
    ((A, B), {"b": C}),
    ((A,), {"a": B, "b": C}),
    ((A,), {"b": B, "a": C}),
    ((A, B, C, 1), {}),
    ((A, B, C, True), {}),
    ((A, B, 1, C), {}),
    ((A, B), {"a": C, "k": 1}),
    ((A, B), {"a": C, "k": 2}),
    ((A, B, 1), {"a": C}),
]
"""Calls of much the same tensors, no two of which are the same."""


def test_nothing_is_recognised_by_its_tensors_alone() -> None:
    for (place, first), (other, second) in itertools.product(enumerate(SHAPED), repeat=2):
        assert (signature_of(*first) == signature_of(*second)) is (place == other)
        try:
            recognizer = make_recognizer(*first)
        except UnsupportedError:  # one tensor twice, which its signature tells of
            assert first is SHAPED[0]
        else:
            assert recognizer(*second) is (place == other)


def test_calls_in_their_stride_are_recognised() -> None:
    recognizer = make_recognizer((X, 2.5, torch.ones(3), "mode", None))
    assert recognizer((torch.randn(4, 4), 2.5, torch.zeros(3), "mode", None))
    assert not recognizer((torch.randn(4, 4), 2.0, torch.zeros(3), "mode", None))
    assert not recognizer((torch.randn(4, 4), 2.5, torch.zeros(3), "other", None))
    assert not recognizer((torch.randn(4, 4), 2.5, torch.zeros(3), "mode"))
    assert not recognizer((torch.randn(4, 4), 2.5, torch.zeros(3), "mode", None, None))


def test_one_tensor_given_twice_is_another_call_than_two() -> None:
    x, y = torch.ones(3), torch.ones(3)
    assert make_recognizer((x, y))((y, x))
    assert not make_recognizer((x, y))((x, x))
    with pytest.raises(UnsupportedError, match="distinct strided tensors"):
        make_recognizer((x, x))


def test_one_empty_tensor_given_twice_is_another_call_than_two() -> None:
    x, y = torch.ones(4)[:0], torch.ones(4)[:0]  # whose addresses are all 0
    recognizer = make_recognizer((x, y))
    assert recognizer((y, x))
    assert not recognizer((x, x))
    assert signature_of((x, x), {}) != signature_of((x, y), {})


@pytest.mark.parametrize("args", [(), (1, 2), ([1],), ({X},), (X, object()), ([X, object()],)])
def test_other_calls_are_left_to_their_signature(args: tuple[Any, ...]) -> None:
    with pytest.raises(UnsupportedError):
        make_recognizer(args)


def test_what_is_conjugated_lazily_is_another_call() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    for made in (lambda x: signature_of((x,), {}), lambda x: signature_of(([x],), {"x": x})):
        assert made(x) == made(x + 0)
        assert made(x) != made(x.conj())


def test_a_tensor_changed_where_it_is_is_another_call() -> None:
    x = torch.randn(4, 4)
    recognizer = make_recognizer((x,))
    x.resize_(2, 8)
    assert not recognizer((x,))


def test_it_keeps_no_tensor_alive() -> None:
    x = torch.randn(4, 4)
    seen, recognizer = weakref.ref(x), make_recognizer((x,))
    del x
    assert seen() is None
    assert recognizer((X,))


def test_a_call_is_recognised_only_under_the_mode_it_was_seen_in() -> None:
    """Not recognising a call is never wrong: its signature then says which call it is."""
    for args in ((X,), ([X],)):
        recognizer = make_recognizer(args)
        with torch.inference_mode():
            assert not recognizer((torch.randn(4, 4),) if args[0] is X else ([torch.randn(4, 4)],))


def test_a_live_model_answers_alike_by_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale

    made: list[int] = []
    fast = torchwise.apply(call, make_decision(call, Plan(threads=torch.get_num_threads() + 1), X, 2.0))  # type: ignore[arg-type]
    for module in (dispatch, call_guard):
        monkeypatch.setattr(module, "signature_of", lambda *given: made.append(1) or signature_of(*given))
    for x, scale in ((X, 2.0), (X, 2.0), (X + 1, 2.0), (X, 3.0), (X[:2], 2.0), (X, 2.0)):
        assert torch.equal(fast(x, scale), x * scale)
    assert fast.statistics.optimized == 4
    assert len(made) == 4, "twice for the first call, and once for each that was not recognised"
    fast._dispatcher.close()
    assert torch.equal(fast(X, 2.0), X * 2)
    assert fast.statistics.optimized == 4


def test_a_live_model_that_is_called_by_name_and_with_containers_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*, past: list[tuple[torch.Tensor, torch.Tensor]], scale: float) -> torch.Tensor:
        return sum((keys * values for keys, values in past), torch.zeros(())) * scale

    made: list[int] = []
    plan = Plan(threads=torch.get_num_threads() + 1)
    given = {"past": [(X, X.clone()), (X.clone(), X.clone())], "scale": 2.0}
    decision = replace(make_decision(call, plan), inputs=(describe_example(Example((), given)),))
    fast = torchwise.apply(call, decision)
    for module in (dispatch, call_guard):
        monkeypatch.setattr(module, "signature_of", lambda *given: made.append(1) or signature_of(*given))
    for _ in range(4):
        assert torch.equal(fast(**given), call(**given))  # type: ignore[arg-type]
    assert torch.equal(fast(past=given["past"][:1], scale=2.0), X * X * 2)  # type: ignore[index]
    assert fast.statistics.optimized == 4
    assert len(made) == 3, "twice for the first call, and once for the one that is another"
