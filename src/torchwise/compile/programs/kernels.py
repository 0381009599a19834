"""The kernels of a region: loops over the points of a shape, and calls of the functions in `native/`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from torchwise.compile.programs.values import C_TYPES, Buffer, Shape, View

SHARED_WORK = 1 << 21
"""Operations above which a loop is shared among PyTorch's threads: some 100 microseconds, and waking them takes 10."""


@dataclass
class Loop:
    """One loop over all points of a shape. Its numbers stay in registers, and only those that others read are stored.

    Attributes:
        shape: the sizes.
    """

    shape: Shape
    _loads: dict[tuple[Buffer, int, Shape], tuple[str, View]] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)
    _stores: list[tuple[View, str]] = field(default_factory=list)
    _ramps: list[tuple[str, Shape]] = field(default_factory=list)
    uses_flag: bool = False

    def load(self, view: View) -> str:
        """Return the variable with a number from memory, for each point."""
        view = view.expand(self.shape)
        key = (view.buffer, view.offset, view.strides)
        if key not in self._loads:
            self._loads[key] = (f"l{len(self._loads)}", view)
        return self._loads[key][0]

    def let(self, dtype: torch.dtype, expression: str) -> str:
        """Return a new variable with that value."""
        name = f"v{len(self._lines)}"
        self._lines.append(f"const {C_TYPES[dtype]} {name} = {expression};")
        return name

    def check(self, condition: str) -> None:
        """Leave the call to the original if a condition holds at any point."""
        self.uses_flag = True
        self._lines.append(f"flag |= {condition};")

    def ramp(self, dim: int) -> str:
        """Return the variable with the index along a dimension."""
        name = f"r{len(self._ramps)}"
        self._ramps.append((name, tuple(int(one == dim) for one in range(len(self.shape)))))
        return name

    def store(self, view: View, name: str) -> None:
        """Write a variable to memory, for each point."""
        self._stores.append((view, name))

    @property
    def buffers(self) -> list[Buffer]:
        """The memory that it reads and writes."""
        return [key[0] for key in self._loads] + [view.buffer for view, _ in self._stores]

    @property
    def work(self) -> int:
        """Its number of operations, roughly."""
        return math.prod(self.shape) * (len(self._lines) + len(self._loads) + len(self._stores))

    def write(self, name: str) -> tuple[str, str]:
        """Return the function, and the expression that calls it."""
        views = [view for _, view in self._loads.values()] + [view for view, _ in self._stores]
        accesses = [view.strides for view in views] + [strides for _, strides in self._ramps]
        sizes, merged = merge_dims(self.shape, accesses)
        index = {view: _index(view.offset, strides) for view, strides in zip(views, merged, strict=False)}
        written = {view.buffer for view, _ in self._stores}
        buffers = list(dict.fromkeys(view.buffer for view in views))
        body = [
            f"const {C_TYPES[view.dtype]} {variable} = {view.buffer.name}[{index[view]}];"
            for variable, view in self._loads.values()
        ]
        ramps = zip(self._ramps, merged[len(views) :], strict=True)
        body += [f"const int64_t {variable} = {_index(0, strides)};" for (variable, _), strides in ramps]
        body += self._lines
        body += [f"{view.buffer.name}[{index[view]}] = {variable};" for view, variable in self._stores]
        parameters = ", ".join(
            f"{'' if one in written else 'const '}{C_TYPES[one.dtype]}* __restrict__ {one.name}" for one in buffers
        )
        lines = [f"static __attribute__((noinline)) int {name}({parameters}) {{", "  int flag = 0;"]
        for dim, size in enumerate(sizes):
            words = ["parallel for"] if dim == 0 and self.work > SHARED_WORK and size > 1 else []
            words += ["simd"] if dim == len(sizes) - 1 else []
            if words:
                lines.append(f"#pragma omp {' '.join(words)}{' reduction(| : flag)' if self.uses_flag else ''}")
            lines.append(f"  for (int64_t i{dim} = 0; i{dim} < {size}; ++i{dim}) {{")
        lines += [*(f"    {line}" for line in body), "  " + "}" * len(sizes), "  return flag;", "}"]
        return "\n".join(lines), f"{name}({', '.join(one.name for one in buffers)})"


@dataclass
class Call:
    """A call of a function in `native/`.

    Attributes:
        function: its name, with the types of its template.
        arguments: views, which are passed as addresses, and expressions.
        out: the buffer that it writes.
        work: its number of operations, roughly.
    """

    function: str
    arguments: Sequence[View | str]
    out: View
    work: int

    @property
    def buffers(self) -> list[Buffer]:
        """The memory that it reads and writes."""
        return [one.buffer for one in self.arguments if isinstance(one, View)] + [self.out.buffer]

    def write(self, name: str) -> tuple[str, str]:  # noqa: ARG002 - as `Loop.write`
        """Return no function of its own, and the expression that calls it."""
        given = [one.pointer() if isinstance(one, View) else one for one in (*self.arguments, self.out)]
        return "", f"{self.function}({', '.join(given)})"


Kernel = Loop | Call


def merge_dims(shape: Shape, accesses: Sequence[Shape]) -> tuple[list[int], list[list[int]]]:
    """Return the fewest dimensions that give all accesses the same elements in the same order, and their strides."""
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in accesses]
    for dim, size in enumerate(shape):
        if size == 1:
            continue
        now = [access[dim] for access in accesses]
        if sizes and all(own[-1] == stride * size for own, stride in zip(strides, now, strict=True)):
            sizes[-1] *= size
            for own, stride in zip(strides, now, strict=True):
                own[-1] = stride
            continue
        sizes.append(size)
        for own, stride in zip(strides, now, strict=True):
            own.append(stride)
    return sizes, strides


def _index(offset: int, strides: Sequence[int]) -> str:
    return " + ".join(_terms(offset, strides)) or "0"


def _terms(offset: int, strides: Sequence[int]) -> Iterator[str]:
    if offset:
        yield str(offset)
    for dim, stride in enumerate(strides):
        if stride:
            yield f"i{dim}" if stride == 1 else f"i{dim} * {stride}"
