"""The kernels of a region, made operator by operator.

Work on single numbers joins the first loop over the same points in which all of its operands are known. So a chain of
it, however long, keeps its numbers in registers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise._torch.dispatch import OpOverload
from torchwise.compile.backends.operator_problems import list_arguments
from torchwise.compile.backends.pure_graph import copy_to_strides
from torchwise.compile.programs import pointwise
from torchwise.compile.programs.kernels import Call, Kernel, Loop
from torchwise.compile.programs.noise import draw_normal, draw_uniform
from torchwise.compile.programs.values import C_TYPES, Buffer, Shape, Value, View, row_major, write_number
from torchwise.errors import UnsupportedError

Node = torch.fx.Node
Scalar = bool | int | float
MAX_SHARED = 4096
"""Most numbers of a sum in a product: longer ones are left to libraries, which cut them."""


class Lowering:
    """Makes the kernels of one region.

    Attributes:
        kernels: in the order in which they run.
        buffers: all memory.
    """

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.buffers: list[Buffer] = []

    def add_input(self, tensor: torch.Tensor) -> Value:
        """Return the value of an input of the region."""
        shape = tuple(map(int, tensor.shape))
        buffer = self._add_buffer(tensor.dtype, shape, tuple(map(int, tensor.stride())), "input")
        return Value(shape, tensor.dtype, View(buffer, shape, buffer.strides))

    def add_output(self, value: Value, strides: Shape) -> Buffer:
        """Have a value written to memory of its own, and return that."""
        view = value.view
        if view is not None and view.is_whole and view.buffer.kind == "work" and view.strides == strides:
            view.buffer.kind = "output"
            return view.buffer
        buffer = self._add_buffer(value.dtype, value.shape, strides, "output")
        self._store(value, View(buffer, value.shape, strides))
        return buffer

    # Memory

    def place(self, value: Value) -> View:
        """Return where a value lies in memory. One that is in no memory yet is stored."""
        if value.view is None:
            view = self.allocate(value.shape, value.dtype)
            self._store(value, view)
            value.view = view
        return value.view

    def place_contiguous(self, value: Value) -> View:
        """Return where a value lies in memory in order and without gaps."""
        view = self.place(value)
        if view.is_contiguous:
            return view
        copy = self.allocate(value.shape, value.dtype)
        self._store(value, copy)
        return copy

    def allocate(self, shape: Shape, dtype: torch.dtype) -> View:
        """Return new memory."""
        buffer = self._add_buffer(dtype, shape, row_major(shape), "work")
        return View(buffer, shape, buffer.strides)

    def _add_buffer(self, dtype: torch.dtype, shape: Shape, strides: Shape, kind: Any) -> Buffer:
        if dtype not in C_TYPES:
            raise UnsupportedError(f"a tensor has {dtype}")
        self.buffers.append(Buffer(f"b{len(self.buffers)}", dtype, shape, strides, kind))
        return self.buffers[-1]

    def _store(self, value: Value, view: View) -> None:
        if value.loop is not None:
            number, name = value.loop, value.name
        else:
            number, (name,) = self._join(value.shape, [value])
        loop = self.kernels[number]
        assert isinstance(loop, Loop)
        loop.store(view, name)
        view.buffer.ready = max(view.buffer.ready, number)

    def call(self, function: str, arguments: Sequence[View | str], out: View, work: int) -> Value:
        """Add a call of a function in `native/`, and return its output."""
        self.kernels.append(Call(function, arguments, out, work))
        out.buffer.ready = len(self.kernels) - 1
        return Value(out.shape, out.dtype, out)

    # Numbers

    def compute(
        self,
        node: Node,
        operands: Sequence[Value | Scalar],
        write: pointwise.Write,
        within: torch.dtype,
        check: str | None = None,
    ) -> Value:
        """Return the value of an expression at each point, whose operands are cast to a type."""
        shape, dtype = shape_of(node), dtype_of(node)
        number, names = self._join(shape, [one for one in operands if isinstance(one, Value)])
        loop = self.kernels[number]
        assert isinstance(loop, Loop)
        given, left = list[str](), iter(names)
        for one in operands:
            if isinstance(one, Value):
                cast = pointwise.write_cast(next(left), one.dtype, within, C_TYPES[within])
                given.append(cast if cast.isidentifier() else loop.let(within, cast))
            else:
                given.append(write_number(one, within))
        if check is not None:
            loop.check(f"{check}({given[0]})")
        name = loop.let(dtype, write(given, C_TYPES[within]))
        return Value(shape, dtype, None, number, name)

    def ramp(self, node: Node, dim: int, start: int, step: int) -> Value:
        """Return numbers that grow along a dimension."""
        number, _ = self._join(shape_of(node), [])
        loop = self.kernels[number]
        assert isinstance(loop, Loop)
        kind, dtype = C_TYPES[dtype_of(node)], dtype_of(node)
        name = loop.let(dtype, f"({kind})({start} + {step} * {loop.ramp(dim)})")
        return Value(shape_of(node), dtype, None, number, name)

    def draw(self, node: Node, seed: Value, stream: int, function: str) -> Value:
        """Return random numbers, each by its place."""
        shape = shape_of(node)
        number, (name,) = self._join(shape, [seed])
        loop = self.kernels[number]
        assert isinstance(loop, Loop)
        terms = [f"{loop.ramp(dim)} * {stride}" for dim, stride in enumerate(row_major(shape)) if shape[dim] != 1]
        drawn = loop.let(torch.float32, f"{function}({name}, {stream}, {' + '.join(terms) or '0'})")
        return Value(shape, torch.float32, None, number, drawn)

    def _join(self, shape: Shape, operands: Sequence[Value]) -> tuple[int, list[str]]:
        """Return the number of the first loop over a shape that knows all operands, and their names there."""
        first = max((self._known_from(one, shape) for one in operands), default=0)
        fitting = (
            number
            for number in range(first, len(self.kernels))
            if isinstance(kernel := self.kernels[number], Loop) and kernel.shape == shape
        )
        number = next(fitting, None)
        if number is None:
            for one in operands:  # what must be stored is stored before the new loop
                if one.constant is None:
                    self.place(one)
            self.kernels.append(Loop(shape))
            number = len(self.kernels) - 1
        return number, [self._name_in(one, number, shape) for one in operands]

    def _known_from(self, value: Value, shape: Shape) -> int:
        if value.constant is not None:
            return 0
        if value.loop is not None and value.shape == shape:
            return value.loop
        if value.loop is not None:
            return value.loop + 1
        assert value.view is not None
        return value.view.buffer.ready + 1

    def _name_in(self, value: Value, number: int, shape: Shape) -> str:
        if value.constant is not None:
            return write_number(value.constant, value.dtype)
        if value.loop == number and value.shape == shape:
            return value.name
        loop = self.kernels[number]
        assert isinstance(loop, Loop)
        return loop.load(self.place(value))


def shape_of(node: Node) -> Shape:
    """Return the sizes of a node's tensor."""
    return tuple(map(int, node.meta["val"].shape))


def dtype_of(node: Node) -> torch.dtype:
    """Return the type of the numbers of a node's tensor."""
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


_OWN: dict[Any, str] = {
    operator.getitem: "getitem",
    copy_to_strides: "copy_to_strides",
    draw_normal: "draw_normal",
    draw_uniform: "draw_uniform",
}
"""The names of functions that are no operators of PyTorch."""


def name_of(node: Node) -> str:
    """Return the name of a node's operator, without its overload, or ""."""
    target = node.target
    if not isinstance(target, OpOverload):
        return _OWN.get(target, "")
    namespace, _, name = str(target).partition(".")
    return name.partition(".")[0] if namespace == "aten" else ""


class Operands:
    """The arguments of an operator: tensors as values of the region."""

    def __init__(self, node: Node, values: dict[Node, Value]) -> None:
        self.node = node
        found = list_arguments(node)
        assert isinstance(node.target, OpOverload)
        names = [one.name for one in node.target._schema.arguments if one.name in found]
        self._values, self._given = values, {name: found[name] for name in names}

    def value(self, name: str) -> Value:
        """Return a tensor."""
        found = self._given[name]
        if not isinstance(found, Node):
            raise UnsupportedError(f"{self.node.target} has no tensor {name}")
        return self._values[found]

    def optional(self, name: str) -> Value | None:
        """Return a tensor, or None if there is none."""
        return None if self._given.get(name) is None else self.value(name)

    def tensors(self, name: str) -> list[Value]:
        """Return a list of tensors."""
        if not all(isinstance(one, Node) for one in self._given[name]):
            raise UnsupportedError(f"{self.node.target} leaves some of {name} out")
        return [self._values[one] for one in self._given[name]]

    def number(self, name: str, default: Any = None) -> Any:
        """Return an argument that is no tensor."""
        found = self._given.get(name, default)
        found = default if found is None else found
        if isinstance(found, (Node, torch.SymInt)):
            raise UnsupportedError(f"{name} of {self.node.target} is not constant")
        return found

    def all(self) -> list[Value | Scalar]:
        """Return all tensors and numbers, in order."""
        return [
            self._values[one] if isinstance(one, Node) else one
            for one in self._given.values()
            if isinstance(one, (Node, bool, int, float))
        ]


Lower = Callable[[Lowering, Operands], Value]


def rows_of(view: View) -> tuple[int, int, int] | None:
    """Return the count, width and pitch of the rows along the last dimension, or None if they are not regular."""
    width = view.shape[-1] if view.shape else 1
    count = math.prod(view.shape[:-1])
    if view.shape and width != 1 and view.strides[-1] != 1:
        return None
    outer = [(size, stride) for size, stride in zip(view.shape[:-1], view.strides[:-1], strict=True) if size != 1]
    if not outer:
        return count, width, width
    pitch = outer[-1][1]
    expected = pitch
    for size, stride in reversed(outer):
        if stride != expected:
            return None
        expected = stride * size
    return count, width, pitch
