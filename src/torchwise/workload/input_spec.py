"""Describe the inputs of a call as data: the form of each tensor, other values, and the memory that they share.

A decision stores this as one line of text. `parse_inputs` reads that line, and is the only code that does.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

MEMORY = "memory: "
"""Begins the last entry of a line, which tells the memory that inputs share."""
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\] (?:\((?P<strides>[-\d, ]*)\)|(?P<layout>torch\.\w+))")
_NESTED = re.compile(r"(?P<dtype>\w+) nested (?P<layout>torch\.\w+)")
_OFFSET = re.compile(r"[+-]\d+")
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "'\""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The form of a tensor.

    Attributes:
        dtype: its name without "torch.".
        shape: its sizes, or None for a nested tensor.
        strides: its strides in elements, or None if it has another layout.
        layout: PyTorch's name of the layout.
    """

    dtype: str
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    layout: str = "torch.strided"

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype} nested {self.layout}"
        return f"{self.dtype}{list(self.shape)} {self.layout if self.strides is None else self.strides}"


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """One leaf of the inputs.

    Attributes:
        path: its place in `(args, kwargs)`, such as "[1]['mask']".
        value: the form of a tensor, the printed form of a plain value, or the name of any other value's class.
    """

    path: str
    value: TensorSpec | str

    def __str__(self) -> str:
        return f"{self.path} {self.value}"


@dataclass(frozen=True, slots=True)
class OverlapSpec:
    """A tensor that begins in the memory of the first tensor that it overlaps with, by so many bytes behind it."""

    path: str
    first: str
    offset: int

    def __str__(self) -> str:
        return f"{self.path} is {self.first} {self.offset:+d} bytes"


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The inputs of a call: all leaves, and the tensors that share memory. Its `str()` is the line of a decision."""

    leaves: tuple[LeafSpec, ...]
    overlaps: tuple[OverlapSpec, ...] = ()

    def __str__(self) -> str:
        text = "; ".join(map(str, self.leaves))
        return f"{text}; {MEMORY}{', '.join(map(str, self.overlaps))}" if self.overlaps else text

    def strip_sizes(self) -> Hashable:
        """Return the leaves without sizes and strides: paths, dtypes, ranks, layouts, and other values."""
        return tuple((leaf.path, strip_sizes(leaf.value)) for leaf in self.leaves)

    @property
    def is_regular(self) -> bool:
        """Whether every path begins with a bracket, and every printed form closes its quotes and brackets."""
        return all(leaf.path.startswith("[") and _is_closed(f"{leaf.value}") for leaf in self.leaves)


def parse_inputs(line: str) -> InputSpec:
    """Read the line of a decision, as `str(InputSpec)` writes it.

    It never raises: an entry of no known form is a value that equals itself alone. A printed form with unpaired quotes
    or brackets may be cut elsewhere than it was written, but the same line always gives the same result.
    """
    entries = _split(line, "; ") if line else []
    overlaps: tuple[OverlapSpec, ...] | None = ()
    if entries and entries[-1].startswith(MEMORY):
        overlaps = _parse_overlaps(entries[-1].removeprefix(MEMORY))
    if overlaps:
        entries.pop()
    return InputSpec(tuple(map(_parse_leaf, entries)), overlaps or ())


def find_varying_dims(inputs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the dimensions in which the examples of a workload differ, by path, from one line for each example.

    A tensor whose rank differs, or that some example lacks, is left out.
    """
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for line in inputs:
        for leaf in parse_inputs(line).leaves:
            if isinstance(leaf.value, TensorSpec) and leaf.value.shape is not None:
                shapes.setdefault(leaf.path, set()).add(leaf.value.shape)
    found = {}
    for path, seen in shapes.items():
        if len({len(shape) for shape in seen}) == 1:
            sizes = [set(column) for column in zip(*seen, strict=True)]
            found[path] = tuple(dim for dim, lengths in enumerate(sizes) if len(lengths) > 1)
    return {path: dims for path, dims in found.items() if dims}


def strip_sizes(value: TensorSpec | str) -> Hashable:
    """Return the form of one leaf without its sizes and strides."""
    if isinstance(value, str):
        return value
    return value.dtype, None if value.shape is None else len(value.shape), value.layout


def _parse_leaf(entry: str) -> LeafSpec:
    path, *rest = _split(entry, " ", most=1)
    return LeafSpec(path, _parse_value("".join(rest)))


def _parse_value(text: str) -> TensorSpec | str:
    if found := _TENSOR.fullmatch(text):
        strides = found["strides"]
        layout = found["layout"] or "torch.strided"
        return TensorSpec(
            found["dtype"], _parse_numbers(found["shape"]), None if strides is None else _parse_numbers(strides), layout
        )
    if found := _NESTED.fullmatch(text):
        return TensorSpec(found["dtype"], None, None, found["layout"])
    return text


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.replace(" ", "").split(",") if number)


def _parse_overlaps(text: str) -> tuple[OverlapSpec, ...] | None:
    found = []
    for entry in _split(text, ", "):
        words = _split(entry, " ")
        if len(words) != 5 or words[1] != "is" or words[4] != "bytes" or not _OFFSET.fullmatch(words[3]):
            return None
        found.append(OverlapSpec(words[0], words[2], int(words[3])))
    return tuple(found)


def _split(text: str, separator: str, most: int | None = None) -> list[str]:
    """Split at a separator that lies in no quotes and in no brackets, at most so many times."""
    found: list[str] = []
    start = 0
    for at in _outer_positions(text):
        if at >= start and text.startswith(separator, at) and (most is None or len(found) < most):
            found.append(text[start:at])
            start = at + len(separator)
    return [*found, text[start:]]


def _is_closed(text: str) -> bool:
    return len(text) in _outer_positions(f"{text} ")


def _outer_positions(text: str) -> Iterator[int]:
    """Yield the positions outside of the quotes and brackets of Python's printed forms."""
    quote, depth, is_escaped = "", 0, False
    for at, character in enumerate(text):
        if quote:
            if is_escaped:
                is_escaped = False
            elif character == "\\":
                is_escaped = True
            elif character == quote:
                quote = ""
            continue
        if character in _QUOTES:
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif depth == 0:
            yield at
