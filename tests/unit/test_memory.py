"""Memory that tensors share, checked by counting every byte."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from torchwise.workload import Example
from torchwise.workload.identity import describe_example
from torchwise.workload.layouts import Overlap, overlap_of

WHOLE = torch.zeros(6, 8)


def cells(tensor: torch.Tensor) -> set[int]:
    """Return every byte that a tensor reaches."""
    size = tensor.element_size()
    places = itertools.product(*map(range, tensor.shape))
    steps = (sum(i * stride for i, stride in zip(place, tensor.stride(), strict=True)) for place in places)
    return {tensor.data_ptr() + step * size + byte for step in steps for byte in range(size)}


def views(count: int, draw: random.Random) -> list[torch.Tensor]:
    memory = torch.zeros(96, dtype=torch.uint8)
    found = []
    for _ in range(count):
        dtype = draw.choice([torch.uint8, torch.int16, torch.float32])
        typed = memory.view(dtype)
        shape = [draw.randint(1, 3) for _ in range(draw.randint(0, 3))]
        strides = [draw.randint(0, 3) for _ in shape]
        reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        found.append(typed.as_strided(shape, strides, draw.randint(0, max(0, typed.numel() - 1 - reach))))
    return found


def test_two_views_meet_where_they_have_a_byte_in_common() -> None:
    draw, met = random.Random(0), 0
    for _ in range(2000):
        one, other = views(2, draw)
        expected = bool(cells(one) & cells(other))
        assert (overlap_of([one, other]) is not None) is expected
        met += expected
    assert 200 < met < 1800


def test_several_are_grouped_as_their_bytes_are() -> None:
    draw = random.Random(1)
    for _ in range(300):
        given = views(4, draw)
        groups = list(range(4))
        for a, b in itertools.combinations(range(4), 2):
            if cells(given[a]) & cells(given[b]):
                low, high = sorted((groups[a], groups[b]))
                groups = [low if group == high else group for group in groups]
        behind = [given[at].data_ptr() - given[group].data_ptr() for at, group in enumerate(groups)]
        expected = Overlap(zip(groups, behind, strict=True)) if groups != [0, 1, 2, 3] else None
        assert overlap_of(given) == expected


@pytest.mark.parametrize(
    "apart",
    [
        WHOLE.chunk(4, -1),
        (WHOLE[:3], WHOLE[3:]),
        (WHOLE[::2], WHOLE[1::2]),
        (WHOLE[:, 0], WHOLE[0, 1:]),
        (torch.ones(0), torch.ones(0), WHOLE[:0], WHOLE),
        (torch.empty(3, device="meta"), torch.empty(3, device="meta")),
        (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), WHOLE),
        (WHOLE,),
        (),
    ],
)
def test_what_has_no_byte_in_common_lies_apart(apart: tuple[torch.Tensor, ...]) -> None:
    assert overlap_of(apart) is None


def test_memory_that_came_from_numpy_is_seen() -> None:
    array = WHOLE.numpy()
    assert overlap_of([torch.from_numpy(array[1:]), torch.from_numpy(array[2:])]) == Overlap([(0, 0), (0, 32)])
    assert overlap_of([torch.from_numpy(array[:2]), torch.from_numpy(array[2:])]) is None


def test_how_inputs_lie_is_described_and_copied() -> None:
    whole = torch.rand(192, 4)
    example = Example((whole[:128],), {"b": whole[64:]})
    described = describe_example(example)
    assert described.endswith("; memory: [1]['b'] is [0][0] +1024 bytes")
    assert describe_example(example.clone()) == described
    apart = Example((torch.rand(128, 4),), {"b": torch.rand(128, 4)})
    assert describe_example(apart) == described.partition("; memory")[0]
    assert describe_example(Example((whole, whole))) == describe_example(Example((whole, whole.view_as(whole))))
