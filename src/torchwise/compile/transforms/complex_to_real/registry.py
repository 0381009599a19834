"""The table of rules, by the operator that they rewrite.

Also here: rules are plain PyTorch on fake tensors. The operators that they call become nodes of the new graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torchwise._torch import pytree as _pytree
from torchwise._torch.dispatch import TorchDispatchMode
from torchwise.compile.transforms.complex_to_real.values import REAL, Pair

Rule = Callable[..., Any]
"""`(want, *args, **kwargs)`, with complex arguments as pairs → a pair, a real tensor, or a tuple of such."""


class NotCoveredError(Exception):
    """A rule does not hold for these arguments: the operator runs as it is, between composing and splitting."""


@dataclass(frozen=True, eq=False)
class ExpectedResult:
    """The result of the operator in eager.

    Attributes:
        target: the overload that is rewritten.
        shape: the shape of its (first) result.
        dtype: the dtype of that result.
        device: the device of that result.
    """

    target: Any
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def real(self) -> torch.dtype:
        """The dtype of the parts of a complex result, or a real result's own dtype."""
        return REAL.get(self.dtype, self.dtype)

    def full(self, value: float) -> torch.Tensor:
        """Return a real tensor of the result's shape."""
        return torch.full(self.shape, value, dtype=self.real, device=self.device)

    def settle(self, result: Pair) -> Pair:
        """Bring parts to the result's shape and dtype. An exact zero stays a number next to a tensor."""
        re, im = (self._settle_part(part) for part in (result.re, result.im))
        if not isinstance(re, torch.Tensor) and not isinstance(im, torch.Tensor):
            re = self.full(0.0)
        unmoved = re is result.re and im is result.im
        return Pair(re, im, result.whole if unmoved else None)

    def _settle_part(self, part: torch.Tensor | float) -> torch.Tensor | float:
        if not isinstance(part, torch.Tensor):
            return self.full(part) if part != 0.0 else 0.0
        part = part if part.dtype == self.real else part.to(self.real)
        return part if part.shape == self.shape else part.expand(self.shape)


Function = TypeVar("Function", bound=Rule)

RULES: dict[Any, Rule] = {}
"""Rules by operator (`torch.ops.aten.mul`, for all its overloads)."""

ARITHMETIC: set[Any] = set()
"""The operators for which rewriting pays: they compute, and others only move numbers."""


def rule(*operators: Any, computes: bool = True) -> Callable[[Function], Function]:
    """Register a rule for operators. `computes` says whether rewriting them alone pays."""

    def register(function: Function) -> Function:
        for rewritten in operators:
            RULES[rewritten] = function
            if computes:
                ARITHMETIC.add(rewritten)
        return function

    return register


class Recorder(TorchDispatchMode):
    """Writes every operator that is called while it is active into a graph.

    Args:
        graph: the graph to write to.
        fake_mode: gives results their shapes, dtypes and strides without computing them.
        decompositions: the compiler's replacements for some operators, by overload.

    Attributes:
        written: the nodes that it wrote. Others were copied from the model's own graph.
    """

    def __init__(self, graph: torch.fx.Graph, fake_mode: Any, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = graph
        self._fake_mode = fake_mode
        self._decompositions = decompositions
        self.written: set[torch.fx.Node] = set()
        # By identity, and kept with the tensor, so that none is freed and its identity given to another.
        self._nodes: dict[int, tuple[torch.Tensor, torch.fx.Node]] = {}

    def bind(self, node: torch.fx.Node) -> Any:
        """Let the fake tensors of a node stand for it, and return them."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = (value, node)
        return value

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """Return the node that a fake tensor stands for."""
        return self._nodes[id(tensor)][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Decompose the operator, or write it down."""
        kwargs = kwargs or {}
        if (decomposition := self._decompositions.get(func)) is not None:
            with self:
                result = decomposition(*args, **kwargs)
            if result is not NotImplemented:
                return result
        with self._fake_mode:
            result = func(*args, **kwargs)
        self._write(func, args, kwargs, result)
        return result

    def _write(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        args, kwargs = _pytree.tree_map_only(torch.Tensor, self.node_of, (args, kwargs))
        node = self._graph.call_function(func, args, kwargs)
        node.meta["val"] = result
        self.written.add(node)
        self.bind(node)
        if isinstance(result, list | tuple):
            for place, one in enumerate(result):
                item = self._graph.call_function(operator.getitem, (node, place))
                item.meta["val"] = one
                self.bind(item)
