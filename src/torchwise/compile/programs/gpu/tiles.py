"""Tiles: the parts of a tensor that a program of Triton holds in registers, and the text that computes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from torchwise.compile.programs.gpu.axes import Axes, Axis, Dims, Segment
from torchwise.compile.programs.values import View
from torchwise.errors import UnsupportedError

TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.bool: "tl.int1",
}
"""The types of numbers that tiles have, as Triton names them."""
Point = dict[Axis, Segment]
"""A part of each axis of features."""
MAX_TILES = 512
"""Most tiles of a tensor."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A variable of the kernel.

    Attributes:
        name: its text.
        dtype: of its numbers.
        has_rows: whether its first dimension is the block of rows. Otherwise all rows have the same numbers.
        wide: the parts of axes that are its other dimensions. Parts of one point are no dimensions.
    """

    name: str
    dtype: torch.dtype
    has_rows: bool
    wide: tuple[Segment, ...]


@dataclass(eq=False)
class Value:
    """A tensor of a region.

    Attributes:
        dims: its dimensions.
        dtype: of its numbers.
        view: where it lies, if it is in memory.
        step: by how many numbers that is further in each repetition of a loop.
        constant: the number that it is everywhere, as text.
        features: the axes of features along which its numbers differ.
        tiles: its parts, by the numbers of the segments of these axes.
    """

    dims: Dims
    dtype: torch.dtype
    view: View | None = None
    step: int = 0
    constant: str | None = None
    features: tuple[Axis, ...] = ()
    tiles: dict[tuple[int, ...], Tile] = field(default_factory=dict)


Scope = tuple[dict[tuple[object, ...], Tile], dict[tuple[object, ...], list[Value]]]
"""The tiles that are loaded, and the random numbers that are drawn and not used, by what they are."""


class Tiles:
    """Writes the body of a kernel.

    Args:
        axes: of the region, settled.
        rows: the axes of its rows, the outermost first.
        most: the widest tile.
        multiplied: axes along which products run, whose tiles need 16 points.
        cluster: programs that share the columns of products.
    """

    def __init__(self, axes: Axes, rows: Sequence[Axis], most: int, multiplied: set[Axis], cluster: int = 1) -> None:
        self.axes, self.rows, self._most, self.cluster = axes, tuple(rows), most, cluster
        self._multiplied = multiplied
        self._segments: dict[Axis, list[Segment]] = {}
        self.lines: list[str] = []
        self.head: dict[str, None] = {}
        self._names = itertools.count()
        self._loaded: dict[tuple[object, ...], Tile] = {}
        self.spare: dict[tuple[object, ...], list[Value]] = {}
        self.indent = 0
        self.loop: str | None = None
        self._passed: dict[Axis, str] = {}
        self.work = 0

    # Points

    def segments(self, axis: Axis) -> list[Segment]:
        """Return the parts of an axis."""
        if axis not in self._segments:
            self._segments[axis] = self.axes.list_segments(axis, self._most)
        return self._segments[axis]

    def points(self, features: Sequence[Axis]) -> Iterator[Point]:
        """Yield each combination of parts of some axes.

        Raises:
            UnsupportedError: there are too many.
        """
        lists = [self.segments(axis) for axis in features]
        count = 1
        for one in lists:
            count *= len(one)
        if count > MAX_TILES:
            raise UnsupportedError(f"a tensor would be {count} tiles")
        for chosen in itertools.product(*lists):
            yield dict(zip(features, chosen, strict=True))

    def padded(self, segment: Segment) -> int:
        """Return the size of a part in a tile: a power of two."""
        if segment.width == 1:
            return 1
        least = 16 if segment.axis in self._multiplied else 2
        return max(1 << (segment.width - 1).bit_length(), least)

    # Text

    def write(self, line: str, place: int | None = None) -> None:
        """Add a line, or put it before the one of a number, outside of loops."""
        if place is None:
            self.lines.append("    " * (1 + self.indent) + line)
        else:
            self.lines.insert(place, "    " + line)

    def name(self, prefix: str = "v") -> str:
        """Return a new name."""
        return f"{prefix}{next(self._names)}"

    def let(self, expression: str, dtype: torch.dtype, has_rows: bool, wide: tuple[Segment, ...]) -> Tile:
        """Return a new variable with that value."""
        name = self.name()
        self.write(f"{name} = {expression}")
        return Tile(name, dtype, has_rows, wide)

    def align(self, tile: Tile, has_rows: bool, wide: Sequence[Segment]) -> str:
        """Return a tile's text with the dimensions of another one, for operators that broadcast."""
        return _subscript(tile.name, tile.has_rows, tile.wide, has_rows, wide)

    def spread(self, tile: Tile, has_rows: bool, wide: Sequence[Segment]) -> str:
        """Return a tile's text with the dimensions and sizes of another one."""
        sizes = self.list_sizes(has_rows, wide)
        if (tile.has_rows, tile.wide) == (has_rows, tuple(wide)) or not sizes:
            return tile.name
        return f"tl.broadcast_to({self.align(tile, has_rows, wide)}, [{', '.join(sizes)}])"

    def spread_text(self, text: str, has_rows: bool, wide: Sequence[Segment]) -> str:
        """Return an expression, which may broadcast, with the sizes of a tile."""
        sizes = self.list_sizes(has_rows, wide)
        return f"tl.broadcast_to({text}, [{', '.join(sizes)}])" if sizes else f"tl.full([], {text}, tl.int32)"

    def list_sizes(self, has_rows: bool, wide: Sequence[Segment]) -> list[str]:
        """Return the sizes of a tile's dimensions."""
        return (["BLOCK"] if has_rows else []) + [str(self.padded(one)) for one in wide]

    def start(self, segment: Segment) -> str:
        """Return the first point of a part."""
        return self._passed.get(segment.axis, str(segment.start))

    def range(self, segment: Segment) -> str:
        """Return the variable with the points of a wide part, counted from its beginning."""
        name = f"r{self.padded(segment)}"
        self.head.setdefault(f"{name} = tl.arange(0, {self.padded(segment)})")
        return name

    def inside(self, segment: Segment) -> str | None:
        """Return the variable with whether a point of a tile is inside of a part, or None if all are."""
        if segment.axis in self._passed:
            return f"m{self._passed[segment.axis]}" if self.axes.size(segment.axis) % segment.width else None
        if segment.width == 1 or self.padded(segment) == segment.width:
            return None
        name = f"m{self.padded(segment)}_{segment.width}"
        points = self.range(segment)
        self.head.setdefault(f"{name} = {points} < {segment.width}")
        return name

    def masked(self, tile: Tile, segments: Sequence[Segment], other: str) -> str:
        """Return a tile's text with a number at the points that are outside of parts."""
        masks = [
            _subscript(mask, False, (one,), tile.has_rows, tile.wide)
            for one in segments
            if (mask := self.inside(one)) is not None and one in tile.wide
        ]
        return f"tl.where({' & '.join(masks)}, {tile.name}, {other})" if masks else tile.name

    # Memory

    def tile(self, value: Value, point: Point) -> Tile:
        """Return the tile of a tensor at a point, loaded if it is in memory."""
        if value.view is None:
            return value.tiles[tuple(point[axis].number for axis in value.features)]
        own = {axis: point[axis] for axis in self.axes.list_features(value.dims)}
        return self.load(value, own)

    def load(self, value: Value, point: Point) -> Tile:
        """Return the numbers of a tensor in memory at a point."""
        view = value.view
        assert view is not None
        resolved = tuple(self.axes.resolve(dim) for dim in value.dims)
        key = (view, resolved, value.step, tuple(sorted((a, s.number) for a, s in point.items())))
        if key in self._loaded:
            return self._loaded[key]
        wide = list_wide(point)
        has_rows = any(axis in self.rows for dim in resolved for axis in dim)
        address, mask = self.locate(value, point, has_rows, wide)
        loaded = f"tl.load({address}{mask})"
        self._loaded[key] = self.let(loaded, view.dtype, has_rows, wide)
        return self._loaded[key]

    def load_once(self, expression: str) -> str:
        """Return the variable with the numbers at some addresses."""
        if (expression,) not in self._loaded:
            self._loaded[expression,] = self.let(expression, torch.float32, False, ())
        return self._loaded[expression,].name

    def locate(self, value: Value, point: Point, has_rows: bool, wide: tuple[Segment, ...]) -> tuple[str, str]:
        """Return the addresses of a part of a tensor, and the arguments that mask them."""
        view = value.view
        assert view is not None
        constant, terms = view.offset, list[str]()
        masks = ["live"] if has_rows else []
        masks = [_subscript(mask, True, (), has_rows, wide) for mask in masks]
        for dim, stride in zip(value.dims, view.strides, strict=True):
            for axis in reversed(self.axes.resolve(dim)):
                if axis in self.rows:
                    text = _subscript(self.row(axis), True, (), has_rows, wide)
                    terms.append(f"{text} * {stride}")
                else:
                    segment = point[axis]
                    constant += segment.start * stride
                    if axis in self._passed:
                        terms.append(f"{self._passed[axis]} * {stride}")
                    if segment.width > 1:
                        text = _subscript(self.range(segment), False, (segment,), has_rows, wide)
                        terms.append(f"{text} * {stride}")
                        if (mask := self.inside(segment)) is not None:
                            masks.append(_subscript(mask, False, (segment,), has_rows, wide))
                stride *= self.axes.size(axis)
        if value.step:
            terms.append(f"{self.loop} * {value.step}")
        parts = [*([str(constant)] if constant else []), *terms]
        address = " + ".join([view.buffer.name, *(f"({one})" if " " in one else one for one in parts)])
        unique = list(dict.fromkeys(masks))
        return address, f", mask={' & '.join(unique)}, other=0" if unique else ""

    def store(self, value: Value, out: Value) -> None:
        """Write a tensor to memory."""
        features = self.axes.list_features(out.dims)
        for point in self.points(features):
            wide = list_wide(point)
            if value.constant is not None:
                text = value.constant
            else:
                text = self.spread(self.tile(value, point), bool(self.rows), wide)
            address, mask = self.locate(out, point, bool(self.rows), wide)
            assert out.view is not None
            mask = mask.replace(", other=0", "")
            mask = mask.replace("mask=live", "mask=first") if self.cluster > 1 else mask  # one of them writes it
            self.write(f"tl.store({address}, {text}{mask})")

    def add_work(self, numbers: int) -> str:
        """Return the first of new places in memory for some numbers of each row of a block.

        In a loop they are other ones every second time, as others may still read those of the time before.
        """
        place, self.work = self.work, self.work + numbers * (1 if self.loop is None else 2)
        block = "BLOCK * " if self.rows else ""
        return f"{block}{place}" if self.loop is None else f"{block}({place} + {self.loop} % 2 * {numbers})"

    def row(self, axis: Axis) -> str:
        """Return the variable with the index of each row along an axis of rows."""
        place = self.rows.index(axis)
        if len(self.rows) == 1:
            return "row"
        inner = 1
        for other in self.rows[place + 1 :]:
            inner *= self.axes.size(other)
        text = f"row // {inner}" if inner > 1 else "row"
        self.head.setdefault(f"row{axis} = {f'({text}) % {self.axes.size(axis)}' if place else text}")
        return f"row{axis}"

    def begin_scope(self) -> Scope:
        """Begin a loop, whose tiles are unknown after it. Return what is known before, for `end_scope`."""
        kept = dict(self._loaded), self.spare
        self.spare = {}  # numbers that are drawn before a loop would be the same in all of its repetitions
        self.indent += 1
        return kept

    def end_scope(self, kept: Scope) -> None:
        """End a loop."""
        self._loaded, self.spare = kept
        self.indent -= 1

    def begin_pass(self, axis: Axis) -> Scope:
        """Begin a loop over the parts of an axis, all of one width. Return the argument of `end_pass`."""
        size = self.axes.size(axis)
        width = min(self._most, 1 << (size - 1).bit_length())
        segment = Segment(axis, 0, 0, width)
        name, self._segments[axis] = self.name("j"), [segment]
        self.write(f"for {name} in range(0, {size}, {width}):")
        kept = self.begin_scope()
        self._passed[axis] = name
        if (mask := self.inside(segment)) is not None:
            self.write(f"{mask} = {name} + {self.range(segment)} < {size}")
        return kept

    def end_pass(self, axis: Axis, kept: Scope) -> None:
        """End a loop over the parts of an axis."""
        del self._passed[axis]
        self.end_scope(kept)


def list_wide(point: Point) -> tuple[Segment, ...]:
    """Return the parts at a point that are dimensions of a tile, in the order of their axes."""
    return tuple(sorted((one for one in point.values() if one.width > 1), key=lambda one: one.axis))


def _subscript(name: str, own_rows: bool, own: Sequence[Segment], has_rows: bool, wide: Sequence[Segment]) -> str:
    """Return a variable with dimensions of size 1 where another one has more."""
    parts = ([":" if own_rows else "None"] if has_rows else []) + [":" if one in own else "None" for one in wide]
    if (not own_rows and not own) or "None" not in parts:
        return name
    return f"{name}[{', '.join(parts)}]"
