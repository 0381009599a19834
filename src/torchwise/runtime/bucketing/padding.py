"""The user's rule for padding, and its use: read the size of a call, pad its inputs, cut its outputs back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchwise.errors import InputError, is_count
from torchwise.keywords import checked_keywords
from torchwise.workload import Example, pytree

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Padder:
    """Pads and cuts calls of one model, whose parameters the rule names.

    Raises:
        InputError: the rule does not fit the model's parameters.
    """

    def __init__(self, model: Callable[..., Any], padding: Padding) -> None:
        self.padding = padding
        self.carriers = carriers_of(model, padding)
        self._cuts = {path: as_dims(dims) for path, dims in (padding.outputs or {}).items()}
        self._lone = self._cuts.get("")

    def size_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Return the size of a call.

        Raises:
            InputError: no input carries it, an input is no tensor or has too few dimensions, or two inputs disagree.
        """
        size: int | None = None
        for carrier in self.carriers:
            given = _get_input(carrier, args, kwargs)
            if given is None:
                continue
            if not isinstance(given, torch.Tensor):
                raise InputError(f"{carrier} is of type {type(given).__name__}, but only a tensor can be padded")
            for dim in carrier.dims:
                if not -given.ndim <= dim < given.ndim:
                    raise InputError(f"{carrier} has {given.ndim} dimensions, but the rule pads dimension {dim}")
                if size is None:
                    size = given.shape[dim]
                elif given.shape[dim] != size:
                    raise InputError(f"{carrier} is {given.shape[dim]} long in dimension {dim}, but others are {size}")
        if size is None:
            raise InputError(f"none of {', '.join(map(str, self.carriers))} is given, but one must carry the size")
        return size

    def find_inputs(self, example: Example) -> Iterator[tuple[Carrier, torch.Tensor]]:
        """Yield each input of an example that carries the size."""
        for carrier in self.carriers:
            if (given := _get_input(carrier, example.args, example.kwargs)) is not None:
                yield carrier, given

    def pad(self, args: tuple[Any, ...], kwargs: dict[str, Any], extra: int) -> Arguments:
        """Return the arguments, padded by `extra` in each dimension that carries the size, with one copy per input."""
        return self._change_inputs(
            args, kwargs, lambda carrier, given: _pad_tensor(given, carrier.dims, extra, carrier.fill)
        )

    def resize(self, example: Example, size: int) -> Example:
        """Return an example of another size, by cutting it or repeating its values."""

        def resize_input(carrier: Carrier, given: torch.Tensor) -> torch.Tensor:
            for dim in carrier.dims:
                given = given.index_select(dim, torch.arange(size, device=given.device) % given.shape[dim])
            return given

        return Example(*self._change_inputs(example.args, dict(example.kwargs), resize_input), example.weight)

    def cut(self, answer: Any, size: int, bucket: int) -> Any:
        """Return an answer without its padding.

        Raises:
            InputError: an output's length is not the bucket's.
        """
        if self._lone is not None:
            return _cut_tensor(answer, self._lone, size, bucket)
        if not self._cuts:
            return answer
        cuts = iter([self._cuts.get(path) for path, _ in tensors_by_path(answer)])

        def cut_output(tensor: torch.Tensor) -> torch.Tensor:
            dims = next(cuts)
            return tensor if dims is None else _cut_tensor(tensor, dims, size, bucket)

        return pytree.map_tensors(cut_output, answer)

    def _change_inputs(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        change: Callable[[Carrier, torch.Tensor], torch.Tensor],
    ) -> Arguments:
        changed, named = list(args), dict(kwargs)
        for carrier in self.carriers:
            given = _get_input(carrier, args, kwargs)
            if given is None:
                continue
            if carrier.position is not None and carrier.position < len(args):
                changed[carrier.position] = change(carrier, given)
            else:
                assert carrier.name is not None, "an argument without a position has a name"
                named[carrier.name] = change(carrier, given)
        return tuple(changed), named


def tensors_by_path(answer: Any) -> list[tuple[str, torch.Tensor]]:
    """List the tensors of an answer with their paths."""
    return [(path, leaf) for path, leaf in pytree.list_named_leaves(answer) if isinstance(leaf, torch.Tensor)]


def _get_input(carrier: Carrier, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if carrier.position is not None and carrier.position < len(args):
        return args[carrier.position]
    return kwargs.get(carrier.name) if carrier.name is not None and kwargs else None


def _pad_tensor(tensor: torch.Tensor, dims: tuple[int, ...], extra: int, fill: float) -> torch.Tensor:
    places = [2 * (-dim if dim < 0 else tensor.ndim - dim) - 1 for dim in dims]  # counting from the last dimension
    amounts = [0] * (max(places) + 1)
    for place in places:
        amounts[place] = extra
    return torch.constant_pad_nd(tensor, amounts, fill)


def _cut_tensor(tensor: torch.Tensor, dims: tuple[int, ...], size: int, bucket: int) -> torch.Tensor:
    """Cut a tensor, and make it dense again, as the model's own answer has no gaps in memory."""
    short = tensor
    for dim in dims:
        if tensor.shape[dim] != bucket:
            raise InputError(f"an output is {tensor.shape[dim]} long in dimension {dim}, but the bucket is {bucket}")
        short = short.narrow(dim, 0, size)
    strides = tensor.stride()
    return short if len(dims) == 1 and strides[dims[0]] == max(strides) else short.clone()


Input = int | str
Dims = int | tuple[int, ...]


@checked_keywords()
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
