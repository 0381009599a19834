"""Answers that are no tensors: NumPy's arrays and scalars, text, and objects are compared by their content."""

from __future__ import annotations

import datetime
import decimal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchwise.records import Outcome, Verdict
from torchwise.verify import Subject, is_stochastic, mismatch, observation_of, verify
from torchwise.workload import Example, Workload

X = torch.linspace(-1.0, 2.0, 12).view(3, 4)


@dataclass
class Scores:
    values: np.ndarray[Any, Any]
    label: str = "a"
    history: list[Any] = field(default_factory=list)


class Holder:
    """An object with attributes, as many a library answers with."""

    def __init__(self, scores: Any, *, loops: bool = False) -> None:
        self.scores = scores
        self._hidden = {"first": scores}
        if loops:
            self.itself = self


class Slotted:
    __slots__ = ("scores",)

    def __init__(self, scores: Any) -> None:
        self.scores = scores


class Items(list[Any]):
    """A list of its own kind, which PyTorch's pytree takes for one leaf."""


def verify_candidate(eager: Callable[..., Any], candidate: Callable[..., Any], x: Any = X) -> Verdict:
    return verify(Subject(Workload(eager, (Example((x,)),)), candidate, eager), extra_draws=0)


Make = Callable[[Any], Any]
ANSWERS: dict[str, Make] = {
    "array": lambda a: a,
    "scalar": lambda a: a.sum(),
    "half": lambda a: a.astype(np.float16),
    "wider": lambda a: a.astype(np.longdouble),
    "unsigned": lambda a: (a * 1000).astype(np.uint32),
    "backwards": lambda a: a[::-1],
    "big endian": lambda a: a.astype(">f4"),
    "masked": lambda a: np.ma.masked_less(a, 0.0),
    "record": lambda a: np.array([(a.sum(), 1)], dtype=[("total", "f4"), ("count", "i4")]),
    "days": lambda a: (a * 100).astype("timedelta64[D]"),
    "objects": lambda a: np.array([a, {"total": a.sum()}], dtype=object),
    "texts": lambda a: a.astype("U8"),
    "text": lambda a: f"{a.sum() + a[0, 0]:.3f}",
    "bytes": lambda a: a.tobytes(),
    "bytearray": lambda a: bytearray(a.tobytes()),
    "number": lambda a: float(a[0, 0]),
    "dataclass": lambda a: Scores(a),
    "dataclass of lists": lambda a: Scores(np.zeros(1), history=[{"a": [a.tolist()]}]),
    "object": lambda a: Holder(a),
    "object in itself": lambda a: Holder(a, loops=True),
    "slots": lambda a: Slotted(a),
    "list of objects": lambda a: [Holder(1), Slotted(Holder(torch.from_numpy(a.copy())))],
    "list of its own kind": lambda a: Items([Scores(a)]),
    "set": lambda a: {round(float(v), 3) for v in a.flatten()},
    "decimal": lambda a: (decimal.Decimal(str(float(a[0, 0]))), Fraction(float(a[0, 0]))),
    "path": lambda a: Path(f"/tmp/{float(a[0, 0])}"),
    "date": lambda a: datetime.datetime(2020, 1, 1) + datetime.timedelta(days=float(a[0, 0])),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_every_kind_of_answer_is_compared(kind: str) -> None:
    make = ANSWERS[kind]

    def eager(x: torch.Tensor) -> Any:
        return make(x.numpy() * 1.5)

    def candidate(x: torch.Tensor) -> Any:
        return make(x.numpy() * 1.6)

    same = verify_candidate(eager, eager)
    assert same.outcome is Outcome.PASS, same.reason
    wrong = verify_candidate(eager, candidate)
    assert wrong.outcome is Outcome.FAIL, wrong.reason


@pytest.mark.parametrize(
    ("eager", "candidate"),
    [
        (lambda x: x.numpy(), lambda x: x),
        (lambda x: x.numpy(), lambda x: x.numpy().astype(np.float64)),
        (lambda x: (x.numpy() > 0).astype(np.uint16), lambda x: (x.numpy() > 0).astype(np.uint32)),
        (lambda x: x.numpy().sum(), lambda x: np.asarray(x.numpy().sum())),
        (lambda x: Holder(x), lambda x: Slotted(x)),
        (lambda x: Holder([]), lambda x: Holder({})),
        (lambda x: Holder(x.numpy()), lambda x: Holder(x.numpy().copy())),
    ],
    ids=["tensor", "dtype", "unsigned", "scalar", "class", "empty", "memory"],
)
def test_the_form_of_an_answer_is_compared_too(eager: Callable[..., Any], candidate: Callable[..., Any]) -> None:
    verdict = verify_candidate(eager, candidate)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason.startswith("structure")


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("opaque", [numbers, threading.Lock, lambda: lambda: 1], ids=["generator", "lock", "closure"])
def test_what_cannot_be_looked_into_is_not_comparable_but_a_wrong_answer_beside_it_is_wrong(opaque: Make) -> None:
    verdict = verify_candidate(lambda x: (opaque(), x), lambda x: (opaque(), x.clone().mul_(1.0)))
    assert verdict.outcome is not Outcome.PASS
    verdict = verify_candidate(lambda x: (opaque(), x * 2), lambda x: (opaque(), x * 2))
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert "output[0]" in verdict.reason
    verdict = verify_candidate(lambda x: (opaque(), x * 2), lambda x: (opaque(), x * 2.1))
    assert verdict.outcome is Outcome.FAIL


def test_an_array_that_the_next_call_overwrites_is_found() -> None:
    kept = np.zeros((3, 4), dtype=np.float32)

    def overwrite_buffer(x: torch.Tensor) -> Any:
        np.multiply(x.numpy(), 2.0, out=kept)
        return kept

    verdict = verify_candidate(lambda x: x.numpy() * 2.0, overwrite_buffer)
    assert verdict.outcome is Outcome.FAIL
    assert "held outputs" in verdict.reason


def test_an_array_that_is_given_is_copied_for_each_call_and_compared_after_it() -> None:
    given = X.numpy().copy()

    def add_in_place(x: Any) -> Any:
        x += 1.0
        return torch.from_numpy(x * 2.0)

    assert verify_candidate(add_in_place, add_in_place, given).outcome is Outcome.PASS
    assert np.array_equal(given, X.numpy())
    assert verify_candidate(add_in_place, lambda x: torch.from_numpy((x + 1.0) * 2.0), given).outcome is Outcome.FAIL


def test_an_array_that_is_given_is_widened_for_the_reference() -> None:
    layer = torch.nn.Linear(4, 2)

    class OfArrays(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return self.layer(torch.from_numpy(x)).numpy()

    model = OfArrays()
    with torch.no_grad():
        verdict = verify_candidate(model, model, X.numpy())
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert verdict.error  # float64 differs from float32, and so it was the reference


def test_random_arrays_are_random() -> None:
    drawn, _ = is_stochastic(lambda: (X + torch.randn_like(X)).numpy())
    assert drawn


def test_a_canary_sees_a_wrong_array() -> None:
    ours, theirs = (observation_of({"scores": Holder(X.numpy() * factor)}, ()) for factor in (1.0, 1.1))
    assert "scores" in (mismatch(ours, theirs, 0.0) or "")
    assert mismatch(theirs, theirs, 0.0) is None
