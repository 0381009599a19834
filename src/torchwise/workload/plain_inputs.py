"""Inputs as plain values and tensors, which PyTorch writes to a file and reads again without running any code."""

from __future__ import annotations

import io
from typing import Any

import torch

from torchwise.errors import InputError
from torchwise.workload import stand_in
from torchwise.workload.workload import Example

PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device})
TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
LAYOUTS = frozenset(
    {torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
)
CONTAINERS: dict[str, type] = {"tuple": tuple, "list": list}
STAND_IN = ("shape", "strides", "dtype", "statistics")
"""The parts of a tensor without values."""


def to_plain(example: Example) -> Any:
    """Return inputs as tensors, and as values that `torch.load` takes with `weights_only`.

    Raises:
        InputError: they hold an object of another class, such as a cache, or a tensor of a class of its own, or with a
            layout or attributes that no file holds.
    """
    return _to_plain((example.args, dict(example.kwargs)))


def from_plain(data: Any) -> Example:
    """Return the inputs that `to_plain` was given, with tensors without values for stand-ins.

    Raises:
        InputError: it is nothing that `to_plain` returned.
    """
    found = _from_plain(data)
    args, kwargs = found if isinstance(found, tuple) and len(found) == 2 else (None, None)
    if not isinstance(args, tuple) or not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        raise InputError(f"stored inputs are a {type(found).__name__}, but must be arguments and named arguments")
    return Example(args, kwargs)


def _to_plain(value: Any) -> Any:
    kind = type(value)
    if kind in TENSORS:
        statistics = stand_in.read_statistics(value)
        if statistics is None:
            _check_can_be_read(value)
            return value
        return {"kind": "stand-in", **_describe_stand_in(value), "statistics": statistics.to_values()}
    if kind in PLAIN:
        return value
    if kind is dict:
        return {"kind": "dict", "items": [[_to_plain(key), _to_plain(item)] for key, item in value.items()]}
    if kind in CONTAINERS.values():
        return {"kind": kind.__name__, "items": [_to_plain(item) for item in value]}
    raise InputError(f"an input is a {kind.__qualname__}, but only tensors and plain values are stored in a file")


def _check_can_be_read(tensor: torch.Tensor) -> None:
    """Refuse a tensor that would make the whole file unreadable."""
    if tensor.layout not in LAYOUTS:
        raise InputError(f"an input has the layout {tensor.layout}, which is not stored in a file")
    if not vars(tensor):
        return
    stream = io.BytesIO()
    try:
        torch.save(vars(tensor), stream)
        torch.load(io.BytesIO(stream.getvalue()), weights_only=True)
    except Exception as error:  # of many classes: an attribute may be anything, and fail as it likes
        names = ", ".join(vars(tensor))
        raise InputError(f"an input is a tensor with attributes that no file holds ({names}): {error}") from None


def _describe_stand_in(tensor: torch.Tensor) -> dict[str, Any]:
    return {"shape": [*tensor.shape], "strides": [*tensor.stride()], "dtype": tensor.dtype}


def _from_plain(data: Any) -> Any:
    if type(data) in TENSORS or type(data) in PLAIN:
        return data
    kind, items = (data.get("kind"), data.get("items")) if type(data) is dict else (None, None)
    if kind == "stand-in":
        return _make_stand_in(data)
    if not isinstance(items, list):
        raise InputError(f"stored inputs hold a {type(data).__name__} that is no container of theirs")
    if kind == "dict":
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in items):
            raise InputError("stored inputs hold a dict whose items are no pairs")
        return {_from_plain(key): _from_plain(item) for key, item in items}
    if kind not in CONTAINERS:
        raise InputError(f"stored inputs hold a container of kind {kind!r}, but it must be one of dict, list, tuple")
    return CONTAINERS[kind](map(_from_plain, items))


def _make_stand_in(data: dict[str, Any]) -> torch.Tensor:
    shape, strides, dtype, values = (data.get(name) for name in STAND_IN)
    try:
        tensor = torch.empty_strided(shape, strides, dtype=dtype, device="meta")  # type: ignore[arg-type]
        stand_in.write_statistics(tensor, stand_in.TensorStatistics.from_values(values))
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError is PyTorch's for sizes below 0
        raise InputError(f"stored inputs hold a tensor without values that cannot be made: {error}") from None
    return tensor
