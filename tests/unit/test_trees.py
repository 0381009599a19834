"""Nested containers: tensors are found, mapped and copied wherever they lie, and the rest stays as it is."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import pytest
import torch

from torchwise.workload import trees

Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    logits: torch.Tensor
    hidden: list[torch.Tensor] = field(default_factory=list)
    label: str = "none"


@dataclass(frozen=True)
class Outer:
    inner: Output
    count: int = 0
    derived: int = field(init=False, default=0)


def t(value: float) -> torch.Tensor:
    return torch.full((2,), value)


def a_tree() -> dict[str, object]:
    return {
        "list": [t(1), 5],
        "tuple": (t(2), None),
        "pair": Pair(t(3), "text"),
        "ordered": OrderedDict(k=t(4)),
        "outer": Outer(Output(t(5), [t(6), t(7)], "cat"), 9),
    }


def test_every_tensor_is_found_in_order() -> None:
    assert [tensor[0].item() for tensor in trees.tensors(a_tree())] == [1, 2, 3, 4, 5, 6, 7]


def test_every_leaf_has_a_path_that_people_can_read() -> None:
    paths = [path for path, _ in trees.named_leaves(a_tree())]
    assert paths == [
        "['list'][0]",
        "['list'][1]",
        "['tuple'][0]",
        "['tuple'][1]",
        "['pair'].first",
        "['pair'].second",
        "['ordered']['k']",
        "['outer'].inner.logits",
        "['outer'].inner.hidden[0]",
        "['outer'].inner.hidden[1]",
        "['outer'].inner.label",
        "['outer'].count",
    ]


def test_a_lone_leaf_has_the_empty_path() -> None:
    assert trees.named_leaves(5) == [("", 5)]
    assert trees.named_leaves(None) == [("", None)]
    assert [path for path, _ in trees.named_leaves(Output(t(1)), "out")] == ["out.logits", "out.label"]


def test_mapping_keeps_containers_and_other_leaves() -> None:
    before = a_tree()
    after = trees.map_tensors(lambda tensor: tensor * 10, before)
    assert [tensor[0].item() for tensor in trees.tensors(after)] == [10, 20, 30, 40, 50, 60, 70]
    assert [tensor[0].item() for tensor in trees.tensors(before)] == [1, 2, 3, 4, 5, 6, 7]
    assert {name: type(value) for name, value in after.items()} == {name: type(v) for name, v in before.items()}
    assert (after["list"][1], after["tuple"][1], after["pair"].second) == (5, None, "text")
    assert (after["outer"].inner.label, after["outer"].count) == ("cat", 9)


def test_mapping_may_return_anything() -> None:
    assert trees.map_tensors(lambda tensor: tuple(tensor.shape), [t(1), {"a": t(2)}]) == [(2,), {"a": (2,)}]


def test_a_class_that_is_a_dataclass_is_a_leaf() -> None:
    assert trees.map_tensors(lambda tensor: tensor, [Output]) == [Output]


def test_a_tensor_that_stands_twice_is_listed_twice() -> None:
    tensor = t(1)
    assert trees.tensors([tensor, {"again": tensor}]) == [tensor, tensor]


def test_a_clone_shares_nothing() -> None:
    before = a_tree()
    for tensor in trees.tensors(trees.clone(before)):
        tensor.zero_()
    assert [tensor[0].item() for tensor in trees.tensors(before)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("needs", [True, False])
def test_a_clone_is_a_leaf_with_the_same_need_of_a_gradient(needs: bool) -> None:
    original = torch.ones(2, requires_grad=needs) * 1
    copy = trees.clone(original)
    assert copy.is_leaf
    assert copy.requires_grad is needs


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 6).t(),
        torch.randn(2, 3, 4).permute(2, 0, 1),
        torch.randn(3, dtype=torch.complex64),
        torch.arange(4),
    ],
    ids=["channels_last", "transposed", "permuted", "complex", "integers"],
)
def test_a_clone_keeps_strides_dtype_and_values(tensor: torch.Tensor) -> None:
    copy = trees.clone(tensor)
    assert copy.stride() == tensor.stride()
    assert copy.dtype == tensor.dtype
    assert torch.equal(copy, tensor)


@pytest.mark.xfail(strict=True, reason="Tensor.clone makes what is not dense contiguous, against clone's promise")
@pytest.mark.parametrize(
    "tensor", [torch.randn(4, 8)[:, ::2], torch.ones(3).expand(2, 3)], ids=["every second", "expanded"]
)
def test_a_clone_keeps_strides_with_gaps(tensor: torch.Tensor) -> None:
    assert trees.clone(tensor).stride() == tensor.stride()
