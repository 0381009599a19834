"""The user's rule for padding: which dimensions of which inputs carry the size, and the fill values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchwise.errors import InputError, is_count

Input = int | str
Dims = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Padding:
    """A rule that pads inputs of any size to a few sizes. `verify_padding` checks that it changes no output.

    Attributes:
        inputs: every input that carries the size, by position or parameter name, with its dimension (or several, as a
            square mask has): `{"tokens": 1, "mask": 1}`. An input that is None or missing in a call is skipped.
        fill: the fill value by input, if it is not 0. For a mask, it is the value that means "nothing here".
        outputs: every output that carries the size, with its dimension, to be cut back. The key is its path as PyTorch
            writes it ("" for a lone tensor, "['logits']" in a dict, "[0]" in a tuple). None detects the outputs.
        least: the smallest size to pad. The original answers smaller ones. Set it above 1 for a model that cannot run
            on less.
        most: the largest size to pad to, or None for the largest size seen.

    Raises:
        InputError: no input carries the size, `fill` names another input, or `least` or `most` is no size.
    """

    inputs: Mapping[Input, Dims]
    fill: Mapping[Input, float] = field(default_factory=dict)
    outputs: Mapping[str, Dims] | None = None
    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        if not self.inputs:
            raise InputError("inputs is empty, but at least one input must carry the size: Padding({'x': 0})")
        if unknown := set(self.fill) - set(self.inputs):
            raise InputError(
                f"fill has {min(unknown, key=repr)!r}, but the inputs that are padded are {[*self.inputs]}"
            )
        for name, size in (("least", self.least), ("most", self.most)):
            if (size is not None or name == "least") and not is_count(size):
                raise InputError(f"{name} is {size!r}, but must be a whole number of at least 1")
        if self.most is not None and self.least > self.most:
            raise InputError(f"least is {self.least} and most is {self.most}, but least must not be the larger")


@dataclass(frozen=True, slots=True)
class Carrier:
    """An input that carries the size: its position in a call, and its padding."""

    position: int | None
    name: str | None
    dims: tuple[int, ...]
    fill: float

    def __str__(self) -> str:
        return f"input {self.name if self.name is not None else self.position}"


def carriers_of(model: Callable[..., Any], padding: Padding) -> tuple[Carrier, ...]:
    """Return the inputs of the rule with their places in a call of `model`: by position, by name, or either.

    Raises:
        InputError: the model has no such parameter, or a dimension is no whole number.
    """
    names, by_name, takes_any = _parameters(model)
    found = []
    for key, dims in padding.inputs.items():
        if isinstance(key, str) and key not in by_name and not takes_any:
            raise InputError(
                f"an input of the rule is {key!r}, but the model takes {', '.join(by_name) or 'none by name'}"
            )
        position = names.index(key) if key in names else key if isinstance(key, int) else None
        if position is not None and position < 0:
            raise InputError(f"an input of the rule is {position}, but positions are counted from 0")
        name = key if isinstance(key, str) else names[key] if key < len(names) else None
        found.append(Carrier(position, name, as_dims(dims), padding.fill.get(key, 0)))
    return tuple(found)


def as_dims(dims: Dims) -> tuple[int, ...]:
    """Read one dimension or several.

    Raises:
        InputError: it is neither.
    """
    several = dims if isinstance(dims, tuple) else (dims,)
    if not several or not all(type(dim) is int for dim in several):
        raise InputError(f"a dimension is {dims!r}, but must be a whole number, or a tuple of them")
    return several


def _parameters(model: Callable[..., Any]) -> tuple[list[str], list[str], bool]:
    """Return the names of positional parameters, those of keyword parameters, and whether any keyword is accepted."""
    from torchwise.compile.forward_entry import has_own_call

    call = model
    if isinstance(model, torch.nn.Module):
        call = type(model).__call__.__get__(model) if has_own_call(type(model)) else model.forward
    try:
        parameters = [*inspect.signature(call).parameters.values()]
    except (TypeError, ValueError):  # a C function may have no signature
        return [], [], True
    kinds = inspect.Parameter
    if isinstance(model, torch.nn.Module) and any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        parameters = [*inspect.signature(model.forward).parameters.values()]  # which most likely gets them all
    positional = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    named = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    return positional, named, any(p.kind is kinds.VAR_KEYWORD for p in parameters)
