"""Real tensors that are one step from complex ones, and computed only if no operator takes the step back.

`z.real` is `view_as_real(z)[..., 0]` in a graph: interleaving both parts to read one would write both to memory.
`z.abs() ** 2` is re² + im²: it needs no root.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from torchwise.compile.transforms.complex_to_real.layout import interleave
from torchwise.compile.transforms.complex_to_real.rules.arithmetic import modulus_squared
from torchwise.compile.transforms.complex_to_real.values import Pair

aten = torch.ops.aten


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
