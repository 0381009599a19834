"""The layout of numbers in memory, and real tensors one step from complex ones, in the graph only if they are needed.

An output keeps the strides that eager gives it, gaps and repetitions included. `z.real` is `view_as_real(z)[..., 0]` in
a graph: interleaving both parts to read one would write both to memory. `z.abs() ** 2` is re² + im²: it needs no root.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional

from torchwise.compile.transforms.complex_to_real.pairs import Pair
from torchwise.compile.transforms.complex_to_real.rules.arithmetic import modulus_squared

aten = torch.ops.aten

Strides = Sequence[int]


def interleave(pair: Pair, strides: Strides) -> torch.Tensor:
    """Return both parts as (..., 2), which `view_as_complex` reads as a tensor of `strides`."""
    if pair.whole is not None and lies(pair.whole, [*(2 * stride for stride in strides), 1]):
        return pair.whole
    return arrange(pair.tensors(), strides)


def arrange(parts: Sequence[torch.Tensor], strides: Strides) -> torch.Tensor:
    """Lay one tensor out with `strides`, or two as (..., 2) with twice those.

    A dimension that is repeated (stride 0) is laid out once and expanded. If strides leave gaps, the memory between is
    padding. Other strides cannot be made this way, and different ones come out. Those are strides that are no multiple
    of the next smaller one, and strides of elements that share memory otherwise.
    """
    size = parts[0].shape
    thin = [1 if stride == 0 else length for length, stride in zip(size, strides, strict=True)]
    order = sorted(range(len(size)), key=lambda dim: (bool(thin[dim] != 1), -strides[dim]))
    room = _room([thin[dim] for dim in order], [strides[dim] for dim in order])
    laid = [_pad(_narrow(part, thin).permute(order).unsqueeze(-1), room) for part in parts]
    whole = torch.stack(laid, dim=-1) if len(laid) > 1 else laid[0].contiguous().unsqueeze(-1)
    whole = _narrow(whole, [thin[dim] for dim in order]).select(len(size), 0)
    whole = whole.permute([*(order.index(dim) for dim in range(len(size))), len(size)])
    return whole.expand(*size, 2) if len(parts) > 1 else whole.squeeze(-1).expand(size)


def lies(tensor: torch.Tensor, strides: Strides) -> bool:
    """Whether a tensor has those strides. Dimensions of length 0 and 1 do not count, as their strides mean nothing."""
    dimensions = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return tensor.numel() == 0 or all(length == 1 or a == b for length, a, b in dimensions)


def fills_its_memory(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor fills its whole memory: without an offset, gaps or repetitions."""
    filled = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1 and stride != filled:
            return False
        filled *= length
    return tensor.untyped_storage().nbytes() == filled * tensor.element_size()


def _room(lengths: list[int], strides: list[int]) -> list[int]:
    """Return the elements that each dimension, slowest first, takes in memory, and last the distance of elements."""
    room = list(lengths)
    for place in range(1, len(lengths)):
        if lengths[place - 1] > 1:
            room[place] = max(strides[place - 1] // strides[place], lengths[place])
    return [*room, strides[-1] if lengths and lengths[-1] > 1 else 1]


def _pad(tensor: torch.Tensor, room: list[int]) -> torch.Tensor:
    missing = [more - length for length, more in zip(tensor.shape, room, strict=True)]
    padding = [number for more in reversed(missing) for number in (0, more)]
    return torch.nn.functional.pad(tensor, padding) if any(missing) else tensor


def _narrow(tensor: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    for dim, length in enumerate(lengths):
        tensor = tensor.narrow(dim, 0, length) if tensor.shape[dim] != length else tensor
    return tensor


class Lazy(ABC):
    """A real tensor that is not in the graph yet."""

    def __init__(self, pair: Pair, strides: tuple[int, ...]) -> None:
        self.pair = pair
        self.strides = strides

    @cached_property
    def tensor(self) -> torch.Tensor:
        """The tensor. The first use writes it into the graph."""
        return self._compute()

    @abstractmethod
    def _compute(self) -> torch.Tensor: ...


class Halves(Lazy):
    """`view_as_real(z)`, (..., 2)."""

    def _compute(self) -> torch.Tensor:
        return interleave(self.pair, [stride // 2 for stride in self.strides[:-1]])


class Modulus(Lazy):
    """|z|."""

    def _compute(self) -> torch.Tensor:
        return torch.hypot(*self.pair.tensors())


def lazily(node: torch.fx.Node, new: Mapping[torch.fx.Node, Any]) -> Lazy | Pair | torch.Tensor | None:
    """Return a node's lazy tensor, or the value one step back from one, else None."""
    packet = getattr(node.target, "overloadpacket", None)
    first = node.args[0] if node.args else None
    value = new.get(first) if isinstance(first, torch.fx.Node) else None
    if isinstance(value, Pair) and packet in _MAKES:
        return _MAKES[packet](value, node.meta["val"].stride())
    if isinstance(value, Halves) and packet is aten.select and node.args[1] in (-1, node.meta["val"].dim()):
        return value.pair.tensors()[int(node.args[2])]  # type: ignore[arg-type]
    if isinstance(value, Halves) and packet is aten.view_as_complex:
        return value.pair
    if isinstance(value, Modulus) and _squares(packet, node):
        return modulus_squared(value.pair)
    return None


_MAKES = {aten.view_as_real: Halves, aten.abs: Modulus}


def _squares(packet: Any, node: torch.fx.Node) -> bool:
    if packet is aten.mul:
        return node.args[0] is node.args[1]
    return packet is aten.square or (packet is aten.pow and isinstance(node.args[1], int | float) and node.args[1] == 2)
