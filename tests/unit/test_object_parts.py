"""Objects among the arguments of a call: their contents count on each call, and their class is examined once."""

from __future__ import annotations

import enum
import functools
from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch

from torchwise.compile import make_recognizer, signature_of
from torchwise.errors import UnsupportedError
from torchwise.workload import object_parts, pytree

pytestmark = pytest.mark.usefixtures("checks")


class Flow(NamedTuple):
    state: Any
    active: Any


@dataclass
class Batch:
    x: Any
    label: Any = "none"
    late: Any = field(init=False)


class Encoding(UserDict[str, Any]):
    def __init__(self, *given: Any, n: int = 0) -> None:
        super().__init__(*given)
        self.n = n

    @functools.cached_property
    def total(self) -> float:
        return 0.0


class Mode(enum.Enum):
    ONE, TWO = 1, 2


class Opaque:
    def __init__(self, x: Any) -> None:
        self.x = x


X = torch.ones(3)
MAKE: dict[str, Callable[[Any], Any]] = {
    "named tuple": lambda value: Flow(Flow(X, X.clone()), value),
    "dataclass": lambda value: Batch(value, X.clone()),
    "dataclass in a dataclass": lambda value: Batch(Batch(X.clone()), [value]),
    "kind of dict": lambda value: Encoding({"x": X.clone(), "y": value}),
    "attribute of a kind of dict": lambda value: Encoding({"x": X.clone()}, n=value),
    "ordered dict": lambda value: OrderedDict(x=X.clone(), y=value),
}
VALUES = (1, 1.0, True, None, "1", Mode.ONE, Mode.TWO, (1,), [1], Flow(1, 2), Batch(1), {1: 2}, {True: 2}, b"1")


@pytest.mark.parametrize("kind", MAKE)
def test_each_value_in_an_object_makes_another_call(kind: str) -> None:
    calls = [((MAKE[kind](value),), {}) for value in VALUES]
    for place, call in enumerate(calls):
        recognizer = make_recognizer(*call)
        for other, given in enumerate(calls):
            assert (signature_of(*call) == signature_of(*given)) is (place == other)
            assert recognizer(*given) is (place == other)


@pytest.mark.parametrize("kind", ["named tuple", "dataclass", "kind of dict", "ordered dict"])
def test_a_tensor_in_an_object_counts_by_its_form_and_memory(kind: str) -> None:
    make, given = MAKE[kind], torch.zeros(3)
    seen = ((make(given),), {})
    recognizer = make_recognizer(*seen)
    for like, same in ((torch.zeros(3), True), (torch.zeros(4), False), (torch.zeros(3).double(), False)):
        assert recognizer((make(like),)) is same
        assert (signature_of(*seen) == signature_of((make(like),), {})) is same


def test_an_attribute_that_changes_is_read_again() -> None:
    batch, encoding = Batch(X), Encoding({"x": X})
    recognizers = [make_recognizer((batch,)), make_recognizer((encoding,))]
    batch.label, encoding.n = "cat", 5
    assert not any(r((one,)) for r, one in zip(recognizers, (batch, encoding), strict=True))
    batch.label, encoding.n = "none", 0
    assert all(r((one,)) for r, one in zip(recognizers, (batch, encoding), strict=True))
    batch.late = 1  # a field that had no value
    encoding.total  # noqa: B018  computed from the rest, so that it counts for nothing
    assert not recognizers[0]((batch,))
    assert recognizers[1]((encoding,))
    encoding.kept = X  # type: ignore[attr-defined]  # its items alone would not say everything
    assert not recognizers[1]((encoding,))


def test_an_object_that_nothing_is_known_of_counts_by_its_class_and_is_not_recognized() -> None:
    assert signature_of((X, Opaque(1)), {}) == signature_of((X, Opaque(2)), {})
    for opaque in (Opaque(1), Flow(Opaque(1), X), Batch(Opaque(1))):
        with pytest.raises(UnsupportedError):
            make_recognizer((X.clone(), opaque))


def test_a_class_is_examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    call = (Flow(Batch(X), Encoding({"x": X.clone()})),)
    signature_of(call, {})

    def refuse(*_: Any) -> Any:
        raise AssertionError("a call makes paths, or looks at fields")

    monkeypatch.setattr(object_parts.dataclasses, "fields", refuse)
    monkeypatch.setattr(pytree._pytree, "tree_flatten_with_path", refuse)
    monkeypatch.setattr(pytree._pytree, "keystr", refuse)
    assert signature_of(call, {}) == signature_of(call, {})
    assert len(pytree.tensors(call)) == 2
