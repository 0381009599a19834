"""Complex values as two real parts, with exact zeros known, and the rules of operators on them.

A real number costs no imaginary arithmetic. Rules are plain PyTorch on fake tensors. The operators that they call
become nodes of the new graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torchwise._torch import pytree as _pytree
from torchwise._torch.dispatch import TorchDispatchMode
from torchwise._torch.symbols import NUMBERS, node_for_number, number_expression
from torchwise.errors import UnsupportedError

Part = torch.Tensor | float
"""A real tensor, or a number, which may be computed from sizes. 0.0 is an exact zero and is never computed with."""

REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The complex dtypes that are rewritten, with the dtype of their parts. complex32 is left as it is."""


def is_complex(value: Any) -> bool:
    """Whether `value` is a tensor of a complex dtype that is rewritten."""
    return isinstance(value, torch.Tensor) and value.dtype in REAL


@dataclass(frozen=True, eq=False)
class Pair:
    """z = re + i·im, with complex arithmetic. If a part is exactly zero, its products are left out.

    So 0 · inf and 0 · nan are 0 here if a part is zero by construction (a real operand, a factor 1j). The sign of a
    zero may differ from eager's. Everything else follows the formulas as they stand.

    Attributes:
        re: the real part.
        im: the imaginary part, of the same shape and dtype if both are tensors.
        whole: (..., 2), both parts interleaved in memory, if the value exists in that form.
    """

    re: Part
    im: Part
    whole: torch.Tensor | None = None

    @classmethod
    def from_interleaved(cls, whole: torch.Tensor) -> Pair:
        """Read a pair from (..., 2)."""
        return cls(whole.select(-1, 0), whole.select(-1, 1), whole)

    def __add__(self, other: Pair) -> Pair:
        """(a + c) + i (b + d)."""
        return Pair(plus(self.re, other.re), plus(self.im, other.im))

    def __sub__(self, other: Pair) -> Pair:
        """(a − c) + i (b − d)."""
        return Pair(minus(self.re, other.re), minus(self.im, other.im))

    def __mul__(self, other: Pair) -> Pair:
        """(ac − bd) + i (ad + bc), as ATen multiplies."""
        real = minus(times(self.re, other.re), times(self.im, other.im))
        return Pair(real, plus(times(self.re, other.im), times(self.im, other.re)))

    def __neg__(self) -> Pair:
        """−a − i b."""
        return Pair(times(-1.0, self.re), times(-1.0, self.im))

    def conj(self) -> Pair:
        """a − i b."""
        return Pair(self.re, times(-1.0, self.im))

    def times_i(self) -> Pair:
        """i z = −b + i a."""
        return Pair(times(-1.0, self.im), self.re)

    def scale_by(self, factor: Part) -> Pair:
        """z times a real number or tensor."""
        return Pair(times(self.re, factor), times(self.im, factor))

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both parts as tensors of one shape, at least one of them being a tensor already."""
        like = self.re if isinstance(self.re, torch.Tensor) else self.im
        if not isinstance(like, torch.Tensor):
            raise UnsupportedError("a complex number is used where a tensor is expected")
        re, im = (p if isinstance(p, torch.Tensor) else torch.full_like(like, p) for p in (self.re, self.im))
        return re, im


def plus(x: Part, y: Part) -> Part:
    """x + y."""
    return y if _is(x, 0.0) else x if _is(y, 0.0) else x + y


def minus(x: Part, y: Part) -> Part:
    """x − y."""
    return times(-1.0, y) if _is(x, 0.0) else x if _is(y, 0.0) else x - y


def times(x: Part, y: Part) -> Part:
    """x · y, without a multiplication by 0, 1 and −1."""
    for factor, other in ((x, y), (y, x)):
        if _is(factor, 0.0):
            return 0.0
        if _is(factor, 1.0):
            return other
        if _is(factor, -1.0):
            return -other
    return x * y


def _is(part: Part, number: float) -> bool:
    return not isinstance(part, torch.Tensor) and part == number


def lift(value: Any, dtype: torch.dtype | None = None) -> Pair:
    """Return a number, a real tensor or a pair as a pair, its parts converted to the real `dtype`."""
    if isinstance(value, Pair):
        return Pair(_to(value.re, dtype), _to(value.im, dtype), value.whole if dtype is None else None)
    if isinstance(value, torch.Tensor):
        return Pair(_to(value, dtype), 0.0)
    if isinstance(value, NUMBERS):  # `complex` would take it for the same in all calls
        return Pair(value, 0.0)  # type: ignore[arg-type]
    number = complex(value)
    return Pair(number.real, number.imag)


def _to(part: Part, dtype: torch.dtype | None) -> Part:
    return part if dtype is None or not isinstance(part, torch.Tensor) else part.to(dtype)


Rule = Callable[..., Any]
"""`(want, *args, **kwargs)`, with complex arguments as pairs → a pair, a real tensor, or a tuple of such."""


class NotCoveredError(Exception):
    """A rule does not hold for these arguments: the operator runs as it is, between composing and splitting."""


@dataclass(frozen=True, eq=False)
class ExpectedResult:
    """The form of the (first) result in eager of the operator that is rewritten."""

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

    Fake tensors give results their shapes, dtypes and strides without computing them.

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
        self._numbers: dict[Any, torch.fx.Node] = {}  # by expression of the sizes
        self._sizes: dict[Any, tuple[torch.fx.Node, int]] = {}  # inputs with their dimension, by symbol

    def bind(self, node: torch.fx.Node) -> Any:
        """Let the fake tensor or the number of a node stand for it, and return it."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            self._nodes[id(value)] = (value, node)
        elif isinstance(value, NUMBERS):
            self._numbers.setdefault(number_expression(value), node)
        return value

    def note_sizes(self, node: torch.fx.Node) -> None:
        """Let the sizes of a tensor input be known, which need not be inputs of the graph themselves."""
        for dim, size in enumerate(node.meta["val"].shape):
            if isinstance(size, NUMBERS):
                self._sizes.setdefault(number_expression(size), (node, dim))

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """Return the node that a fake tensor stands for."""
        return self._nodes[id(tensor)][1]

    def number(self, value: Any) -> Any:
        """Return the node that computes a number from the sizes of the inputs, or the number itself if it is known.

        Raises:
            UnsupportedError: it depends on a size that is no input of the graph.
        """
        for symbol in number_expression(value).free_symbols - self._numbers.keys():
            if symbol in self._sizes:
                node, dim = self._sizes[symbol]
                size = self._graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                size.meta["val"] = node.meta["val"].shape[dim]
                self._numbers[symbol] = size
        return node_for_number(value, self._numbers)

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
        args, kwargs = _pytree.tree_map_only(NUMBERS, self.number, (args, kwargs))
        node = self._graph.call_function(func, args, kwargs)
        node.meta["val"] = result
        self.written.add(node)
        self.bind(node)
        if isinstance(result, list | tuple):
            for place, one in enumerate(result):
                item = self._graph.call_function(operator.getitem, (node, place))
                item.meta["val"] = one
                self.bind(item)
