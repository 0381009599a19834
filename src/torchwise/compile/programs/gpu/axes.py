"""Axes of tensors: which numbers of several tensors belong together, row by row and feature by feature.

A dimension is a tuple of axes, as a view may join dimensions or split one. Operators tell which axes are the same one
(`unify`), and which of them mix their numbers (`mark_features`). An axis that nothing mixes is an axis of independent
rows. An axis of features is cut where operators take a part of it, so that each part is a tile of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchwise.errors import UnsupportedError

Axis = int
Dim = tuple[Axis, ...]
"""The axes of a dimension, the outermost first. One of size 1 has none."""
Dims = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of an axis between two cuts.

    Attributes:
        axis: it.
        number: of the part.
        start: its first point.
        width: its number of points.
    """

    axis: Axis
    number: int
    start: int
    width: int


class Axes:
    """All axes of a region."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._same: list[Axis] = []
        self._split: dict[Axis, Dim] = {}
        self._features: set[Axis] = set()
        self._cuts: dict[Axis, set[int]] = {}
        self._links: list[tuple[Axis, Axis, int]] = []

    def add(self, size: int) -> Dim:
        """Return a dimension of an axis of its own."""
        if size == 1:
            return ()
        self._sizes.append(size)
        self._same.append(len(self._same))
        return (len(self._same) - 1,)

    def size(self, axis: Axis) -> int:
        """Return the number of points of an axis."""
        return self._sizes[self._find(axis)]

    def length(self, dim: Dim) -> int:
        """Return the number of points of a dimension."""
        return math.prod(map(self.size, dim))

    def resolve(self, dim: Dim) -> Dim:
        """Return the axes that a dimension has by now, each by the one name that equal axes share."""
        found: list[Axis] = []
        for axis in map(self._find, dim):
            found += self.resolve(self._split[axis]) if axis in self._split else (axis,)
        return tuple(found)

    def unify(self, one: Dim, other: Dim) -> None:
        """Note that two dimensions of one size have the same points.

        Raises:
            UnsupportedError: one would be cut in parts that are not whole.
        """
        first, second = list(self.resolve(one)), list(self.resolve(other))
        while first and second:
            a, b = first.pop(0), second.pop(0)
            if a == b:
                continue
            sizes = self.size(a), self.size(b)
            if sizes[0] > sizes[1]:
                first[:0] = self._cut_evenly(a, sizes[1])
                second.insert(0, b)
            elif sizes[1] > sizes[0]:
                second[:0] = self._cut_evenly(b, sizes[0])
                first.insert(0, a)
            else:
                self._join(a, b)
        if first or second:
            raise UnsupportedError("dimensions of several sizes meet")

    def regroup(self, dims: Sequence[Dim], sizes: Sequence[int]) -> Dims:
        """Return the dimensions of a view with these sizes.

        Raises:
            UnsupportedError: a dimension is cut in parts that are not whole.
        """
        left = [axis for dim in dims for axis in self.resolve(dim)]
        found: list[Dim] = []
        for size in sizes:
            taken: list[Axis] = []
            while self.length(tuple(taken)) < size:
                axis = left.pop(0)
                wanted = size // self.length(tuple(taken))
                if self.size(axis) > wanted:
                    axis, *rest = self._cut_evenly(axis, wanted)
                    left[:0] = rest
                taken.append(axis)
            if self.length(tuple(taken)) != size:
                raise UnsupportedError("a view joins parts of dimensions")
            found.append(tuple(taken))
        return tuple(found)

    def take(self, dim: Dim, start: int, length: int) -> Dim:
        """Return the dimension of a part of another one, which is of features, and is cut there.

        Raises:
            UnsupportedError: the part's borders are inside of a dimension that was joined of several.
        """
        self.mark_features(dim)
        resolved = self.resolve(dim)
        if not resolved:
            return ()
        outer, *inner = resolved
        width = self.length(tuple(inner))
        if start % width or length % width:
            raise UnsupportedError("a part of a joined dimension is taken")
        first, last = start // width, (start + length) // width
        self._cuts.setdefault(outer, set()).update((first, last))
        if last - first == self.size(outer):
            return resolved
        part = self.add(last - first)
        self.mark_features(part)
        self._links += [(outer, axis, first) for axis in part]
        return (*part, *inner)

    def cut_all(self, axis: Axis) -> None:
        """Cut an axis between all of its points."""
        self._cuts.setdefault(self._find(axis), set()).update(range(self.size(axis)))

    def mark_features(self, dim: Dim) -> None:
        """Note that an operator mixes the numbers along a dimension."""
        self._features.update(self.resolve(dim))

    def settle(self) -> None:
        """Have parts cut where their whole is, and the other way round.

        Raises:
            UnsupportedError: a dimension was split after a part of it was taken.
        """
        if any(self._find(axis) in self._split for link in self._links for axis in link[:2]):
            raise UnsupportedError("a part of a dimension is taken, which a view splits")
        cuts: dict[Axis, set[int]] = {}
        for axis, places in self._cuts.items():
            cuts.setdefault(self._find(axis), set()).update(places)
        self._cuts, changed = cuts, True
        while changed:
            changed = False
            for whole, part, start in self._links:
                whole, part = self._find(whole), self._find(part)
                own, other = self._cuts.setdefault(whole, set()), self._cuts.setdefault(part, set())
                down = {place - start for place in own if 0 < place - start < self.size(part)} - other
                up = {place + start for place in other} - own
                other |= down
                own |= up
                changed = changed or bool(down or up)

    def list_linked(self, chosen: Iterable[Axis]) -> set[Axis]:
        """Return these axes, and all that are a part or the whole of one of them."""
        found = {self._find(axis) for axis in chosen}
        pairs = [(self._find(whole), self._find(part)) for whole, part, _ in self._links]
        while more := {axis for pair in pairs if found & set(pair) for axis in pair} - found:
            found |= more
        return found

    def is_feature(self, axis: Axis) -> bool:
        """Whether an operator mixes the numbers along an axis."""
        return any(self._find(one) == self._find(axis) for one in self._features)

    def list_features(self, dims: Iterable[Dim]) -> tuple[Axis, ...]:
        """Return the axes of features of these dimensions, in one order for all tensors."""
        features = {self._find(axis) for axis in self._features}
        return tuple(sorted({axis for dim in dims for axis in self.resolve(dim)} & features))

    def list_rows(self, dims: Iterable[Dim]) -> tuple[Axis, ...]:
        """Return the axes of rows of these dimensions, in their order."""
        features = {self._find(axis) for axis in self._features}
        return tuple(
            axis for axis in dict.fromkeys(a for dim in dims for a in self.resolve(dim)) if axis not in features
        )

    def list_segments(self, axis: Axis, most: int) -> list[Segment]:
        """Return the parts of an axis between its cuts, in order, none wider than `most`."""
        axis, size = self._find(axis), self.size(axis)
        wanted = sorted({0, size, *(place for place in self._cuts.get(axis, ()) if 0 < place < size)})
        places = [place for start, stop in itertools.pairwise(wanted) for place in range(start, stop, most)]
        ends = [*places[1:], size]
        return [Segment(axis, number, a, b - a) for number, (a, b) in enumerate(zip(places, ends, strict=True))]

    def _find(self, axis: Axis) -> Axis:
        while self._same[axis] != axis:
            axis = self._same[axis]
        return axis

    def _join(self, one: Axis, other: Axis) -> None:
        kept, gone = sorted((self._find(one), self._find(other)))
        self._same[gone] = kept
        self._cuts.setdefault(kept, set()).update(self._cuts.pop(gone, ()))

    def _cut_evenly(self, axis: Axis, outer: int) -> Dim:
        """Split an axis in two, the outer one of which has a size."""
        size = self.size(axis)
        if size % outer or self._cuts.get(axis):
            raise UnsupportedError("a view splits a dimension in parts that are not whole")
        parts = (*self.add(outer), *self.add(size // outer))
        self._split[axis] = parts
        if self.is_feature(axis):
            self.mark_features(parts)
        return parts
