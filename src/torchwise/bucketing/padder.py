"""Apply the rule: read the size of a call, pad its inputs, cut its outputs back. This runs on every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchwise.bucketing.padding import Carrier, Padding, as_dims, carriers_of
from torchwise.errors import InputError
from torchwise.workload import Example, pytree

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Padder:
    """Pads and cuts calls of one model by a rule.

    Args:
        model: the model whose parameters the rule names.
        padding: the rule.

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
