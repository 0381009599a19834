"""Batches in kinds of dict, such as a tokenizer's output: looked into, cut and recognised as dicts are."""

from __future__ import annotations

import functools
from collections import UserDict
from types import MappingProxyType
from typing import Any

import pytest
import torch
from step_samples import a_step, batch

import torchwise
from live_decisions import make_decision
from torchwise.compile import signature_of
from torchwise.compile.signature import opaque_leaves
from torchwise.errors import WorkloadError
from torchwise.plan import Plan
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.workload import pytree
from torchwise.workload.identity import describe_example
from torchwise.workload.workload import Example

FUSED = Plan(optimizer="fused")


class Kind(dict[str, Any]):
    """A dict of somebody's own."""

    @functools.cached_property
    def rows(self) -> int:
        return len(self["x"])


class WithAttributes(dict[str, Any]):
    """Its copies would keep the tensors of the original as attributes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.__dict__ = self


class Encoding(UserDict[str, Any]):
    """Like `transformers.BatchEncoding`: items as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.data = state["data"]


class Rows(torch.nn.Module):
    """Returns its loss, and remembers how many rows it saw."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return torch.nn.functional.cross_entropy(self.linear(x), y)


def make_batch(kind: Any, rows: int = 8) -> Any:
    x, y = batch(rows, 0)
    return kind({"x": x, "y": y})


@pytest.mark.parametrize("kind", [dict, UserDict, Kind, Encoding])
def test_they_are_cut_as_dicts_are(kind: Any) -> None:
    step, plain = a_step(Rows(), loss=None, accumulate=2), a_step(Rows(), loss=None, accumulate=2)
    assert step(make_batch(kind)) == plain(make_batch(dict))
    assert step.model.seen == [4, 4]


@pytest.mark.parametrize("kind", [UserDict, Kind, Encoding])
def test_a_copy_is_of_the_same_kind_and_the_original_stays(kind: Any) -> None:
    original = make_batch(kind)
    doubled = pytree.map_tensors(lambda t: t * 2, {"inside": original})["inside"]
    assert type(doubled) is kind
    assert torch.equal(doubled["x"], original["x"] * 2)
    assert torch.equal(original["x"], batch(8, 0)[0])
    assert [path for path, _ in pytree.list_named_leaves(original)] == ["['x']", "['y']"]
    assert "dict(*, *)" in pytree.form(original)


@pytest.mark.parametrize("kind", [UserDict, Kind, Encoding])
def test_other_shapes_are_other_signatures_and_not_proven(kind: Any) -> None:
    step = a_step(Rows(), loss=None)
    assert describe_example(Example((make_batch(kind),))) == describe_example(Example((make_batch(dict),)))
    assert signature_of((make_batch(kind),), {}) == signature_of((make_batch(kind),), {})
    assert signature_of((make_batch(kind),), {}) != signature_of((make_batch(kind, 6),), {})
    fast = torchwise.apply(step, make_decision(step, FUSED, make_batch(kind)))
    fast(make_batch(kind))
    fast(make_batch(kind, 6))
    assert fast.statistics.optimized == 1
    assert fast.statistics.original == {FallbackReason.INPUTS_NOT_VERIFIED: 1}


@pytest.mark.parametrize("kind", [UserDict, Kind, Encoding])
def test_what_hangs_beside_the_items_counts(kind: Any) -> None:
    def make_scaled_batch(scale: Any) -> Any:
        found = make_batch(kind)
        found.scale = scale
        return found

    for other in (2.0, 1, [1.0]):
        assert signature_of((make_scaled_batch(1.0),), {}) != signature_of((make_scaled_batch(other),), {})
        assert describe_example(Example((make_scaled_batch(1.0),))) != describe_example(
            Example((make_scaled_batch(other),))
        )
    assert opaque_leaves(make_scaled_batch(object())), "from which nothing may be concluded"
    assert pytree.is_leaf(make_scaled_batch([torch.ones(1)])), "whose copy would have the tensor of the original"
    private = make_scaled_batch(1.0)
    private._notes = object()
    assert getattr(private, "rows", 8) == 8  # which is then kept beside
    assert signature_of((private,), {}) == signature_of((make_scaled_batch(1.0),), {})
    step = a_step(Rows(), loss=None)
    fast = torchwise.apply(step, make_decision(step, FUSED, make_scaled_batch(1.0)))
    for scale in (1.0, 2.0):
        fast(make_scaled_batch(scale))
    assert (fast.statistics.optimized, fast.statistics.original) == (1, {FallbackReason.INPUTS_NOT_VERIFIED: 1})


@pytest.mark.parametrize("kind", [MappingProxyType, WithAttributes])
def test_a_mapping_that_cannot_be_looked_into_is_refused(kind: Any) -> None:
    step = a_step(Rows(), loss=None)
    with pytest.raises(WorkloadError, match=r"mapping of type \w+, .* pass dict"):
        step(make_batch(kind))
    assert step.model.seen == []


def test_targets_that_cannot_be_looked_into_prove_nothing() -> None:
    class Target:
        def __init__(self, y: torch.Tensor) -> None:
            self.y = y

    x, y = batch()
    step = a_step(loss=lambda outputs, target: torch.nn.functional.cross_entropy(outputs, target.y))
    fast = torchwise.apply(step, make_decision(step, FUSED, x, Target(y)))
    fast(x, Target(y))
    assert fast.statistics.original == {FallbackReason.INPUTS_NOT_VERIFIED: 1}


def test_what_a_tokenizer_returns_is_one() -> None:
    transformers = pytest.importorskip("transformers")
    step = a_step(Rows(), loss=None, accumulate=4)
    step(make_batch(transformers.BatchEncoding))
    assert step.model.seen == [2, 2, 2, 2]
