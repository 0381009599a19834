"""Axes of tensors: which are the same, and how views and parts cut them."""

from __future__ import annotations

import pytest

from torchwise.compile.programs.gpu.axes import Axes
from torchwise.errors import UnsupportedError


def test_a_view_splits_an_axis_for_all_that_have_it() -> None:
    axes = Axes()
    whole, other = axes.add(12), axes.add(12)
    axes.unify(whole, other)
    outer, inner = axes.regroup([whole], [3, 4])
    assert axes.resolve(other) == (*outer, *inner)
    assert [axes.length(dim) for dim in (outer, inner, other)] == [3, 4, 12]
    assert axes.regroup([outer, inner], [12]) == (axes.resolve(whole),)


def test_parts_and_wholes_are_cut_alike() -> None:
    axes = Axes()
    whole = axes.add(10)
    part = axes.take(whole, 2, 6)
    axes.take(part, 1, 2)
    axes.settle()
    assert [(s.start, s.width) for s in axes.list_segments(whole[0], 64)] == [(0, 2), (2, 1), (3, 2), (5, 3), (8, 2)]
    assert [(s.start, s.width) for s in axes.list_segments(part[0], 64)] == [(0, 1), (1, 2), (3, 3)]
    assert [s.width for s in axes.list_segments(part[0], 2)] == [1, 2, 2, 1]


@pytest.mark.parametrize(("sizes", "view"), [([10], [3, 4]), ([6, 4], [8, 3])])
def test_a_view_that_cuts_unevenly_is_refused(sizes: list[int], view: list[int]) -> None:
    axes = Axes()
    dims = [axes.add(size) for size in sizes]
    with pytest.raises((UnsupportedError, IndexError)):
        axes.regroup(dims, view)
