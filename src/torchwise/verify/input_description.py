"""Read a description of inputs, such as "x: float32[n, 64] n=1..4096": data that `input_cases` draws tensors from."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.errors import InputError, did_you_mean

FORM = 'write such as "x: float32[n, 64] n=1..4096 in -1..1", or "p: 0.5" for a plain value'
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
STRUCTURES = {
    "sorted": "values rise along the last dimension",
    "distinct": "no value occurs twice along the last dimension",
    "mask": "0 or minus infinity, or True and False: no row is masked out as a whole",
    "probabilities": "values lie in (0, 1) and sum to 1 along the last dimension",
    "symmetric": "each matrix equals its transpose",
    "positive-definite": "each matrix is symmetric, with eigenvalues from 0.5 on",
    "lower-triangular": "each matrix is zero above its diagonal",
}
"""Structures of values, and their meanings."""
CONTIGUOUS = "contiguous"
"""Says that an input comes in rows without gaps, and never in another layout."""
SQUARE = ("symmetric", "positive-definite", "lower-triangular")
MAX_SIZE = 512
"""Largest size of a dimension whose range is not given. The smallest is 0."""
_TENSOR = re.compile(r"(?P<dtype>\w+)\s*\[(?P<dims>[^\]]*)\](?P<rest>.*)", re.DOTALL)
_NAME = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*:\s*(?P<value>.+)", re.DOTALL)
_RANGE = re.compile(r"(?P<low>[-+\w.]+?)\.\.(?P<high>[-+\w.]+)")
_SIZE = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<low>\d+)(\.\.(?P<high>\d+))?")


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor to draw.

    Attributes:
        name: its name in messages.
        dtype: its dtype without "torch.".
        dims: its sizes: numbers, or names of sizes that vary.
        low: the least value, or None for no limit.
        high: the largest value, or None for no limit.
        structure: a key of `STRUCTURES`, or "".
        is_contiguous: whether it is always laid out in rows.
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None
    structure: str = ""
    is_contiguous: bool = False


@dataclass(frozen=True, slots=True)
class PlainInput:
    """A plain value of Python, which never varies."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class InputDescription:
    """All inputs in the order in which they are passed, and the range of each named size."""

    inputs: tuple[TensorInput | PlainInput, ...]
    sizes: dict[str, tuple[int, int]]

    @classmethod
    def parse(cls, lines: Sequence[str]) -> InputDescription:
        """Read one line for each input.

        Raises:
            InputError: a line cannot be read. The message gives the line and the rule.
        """
        if not lines:
            raise InputError(f"no input is described: {FORM}")
        sizes: dict[str, tuple[int, int]] = {}
        inputs = tuple(_parse_input(line, sizes) for line in lines)
        names = [one.name for one in inputs]
        if double := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"two inputs are called {double!r}, but each needs a name of its own")
        used = {dim for one in inputs if isinstance(one, TensorInput) for dim in one.dims if isinstance(dim, str)}
        if unused := sorted(set(sizes) - used):
            raise InputError(f"the size {unused[0]} has a range, but no input has a dimension of that name")
        return cls(inputs, {name: sizes.get(name, (0, MAX_SIZE)) for name in sorted(used)})


def _parse_input(line: str, sizes: dict[str, tuple[int, int]]) -> TensorInput | PlainInput:
    named = _NAME.fullmatch(line)
    if named is None:
        raise InputError(f"an input is described as {line!r}: {FORM}")
    tensor = _TENSOR.fullmatch(named["value"].strip())
    if tensor is None:
        return PlainInput(named["name"], _parse_value(line, named["value"].strip()))
    if tensor["dtype"] not in DTYPES:
        near = did_you_mean(tensor["dtype"], DTYPES) or f": use one of {', '.join(DTYPES)}"
        raise InputError(f"the dtype of {named['name']} is {tensor['dtype']!r}, which is unknown{near}")
    dims = tuple(_parse_dim(line, dim.strip()) for dim in tensor["dims"].split(",") if dim.strip())
    words = tensor["rest"].replace(",", " ").split()
    others = [word for word in words if word != CONTIGUOUS]
    low, high, structure = _parse_rest(line, others, sizes)
    found = TensorInput(named["name"], tensor["dtype"], dims, low, high, structure, CONTIGUOUS in words)
    _check_structure(found)
    _check_range(found)
    return found


def _parse_value(line: str, text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise InputError(f"an input is described as {line!r}, but {text!r} is no tensor and no value: {FORM}") from None


def _parse_dim(line: str, text: str) -> int | str:
    if text.isdecimal():
        return int(text)
    if text.isidentifier():
        return text
    raise InputError(f"a dimension of {line!r} is {text!r}, but must be a whole number or a name such as n")


def _parse_rest(
    line: str, words: list[str], sizes: dict[str, tuple[int, int]]
) -> tuple[float | None, float | None, str]:
    """Read ranges of sizes, the range of values, and the structure."""
    low: float | None = None
    high: float | None = None
    structure = ""
    while words:
        word = words.pop(0)
        if size := _SIZE.fullmatch(word):
            _add_size(line, size, sizes)
        elif word == "in":
            low, high = _parse_range(line, words.pop(0) if words else "")
        elif word.replace("_", "-") in STRUCTURES:
            structure = word.replace("_", "-")
        else:
            near = did_you_mean(word, [*STRUCTURES, CONTIGUOUS]) or f": a structure is one of {', '.join(STRUCTURES)}"
            raise InputError(f"{word!r} in {line!r} is no size, no range and no structure{near}")
    return low, high, structure


def _add_size(line: str, found: re.Match[str], sizes: dict[str, tuple[int, int]]) -> None:
    low = int(found["low"])
    span = low, int(found["high"] or low)
    if span[0] > span[1]:
        raise InputError(f"the size {found[0]} of {line!r} ends before it begins")
    if sizes.setdefault(found["name"], span) != span:
        raise InputError(f"the size {found['name']} has two ranges, but needs one: give it with one input only")


def _parse_range(line: str, text: str) -> tuple[float, float]:
    found = _RANGE.fullmatch(text)
    try:
        low, high = (float(found["low"]), float(found["high"])) if found else (math.nan, math.nan)
    except ValueError:
        low = high = math.nan
    if not low <= high or math.isinf(low) or math.isinf(high):
        raise InputError(f"the range of values in {line!r} is {text!r}, but must be such as 0..1, from low to high")
    return low, high


def _check_range(one: TensorInput) -> None:
    dtype = getattr(torch, one.dtype)
    if one.low is None or one.high is None or dtype is torch.bool:
        return
    is_whole = not (dtype.is_floating_point or dtype.is_complex)
    info = torch.iinfo(dtype) if is_whole else torch.finfo(dtype)
    if beyond := [value for value in (one.low, one.high) if not info.min <= value <= info.max]:
        raise InputError(
            f"{one.name} has values up to {beyond[0]:g}, but {one.dtype} holds {info.min:g} to {info.max:g} only"
        )
    if is_whole and math.ceil(one.low) > math.floor(one.high):
        raise InputError(f"no whole number lies in {one.low:g}..{one.high:g}, of which {one.name} is to have values")


def _check_structure(one: TensorInput) -> None:
    square = len(one.dims) >= 2 and one.dims[-1] == one.dims[-2]
    if one.structure in SQUARE and not square:
        raise InputError(f"{one.name} is {one.structure}, but its last two dimensions must be the same, such as [n, n]")
    if one.structure and not one.dims:
        raise InputError(f"{one.name} is {one.structure}, but has no dimension")
    if one.structure in (*SQUARE, "probabilities") and not one.dtype.startswith(("float", "bfloat", "complex")):
        raise InputError(f"{one.name} is {one.structure}, but its dtype {one.dtype} holds no fractions")
