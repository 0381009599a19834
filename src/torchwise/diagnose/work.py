"""The work of a profiler's event: its bytes and FLOPs, from the observed original model and from its shapes.

The profiler knows the shapes of a library's calls, but not of generated ones. The Python that Inductor writes around
its kernels allocates every buffer with its size (`empty_strided_cpu(...)`) and asserts the size of a library's results
(`assert_size_stride(...)`). It ends with inputs to try it on (`rand_strided(...)`).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.diagnose.op_trace import MOVES, VIEWS, Shapes, Work, product_flops

_GENERATED = re.compile(r"^(?:graph_\d+_)?((?:cpp|triton)_\w+)$")
_ITEM_BYTES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}
ALLOCATIONS = ("empty_strided_cpu", "empty_strided_cuda", "empty_strided", "rand_strided", "reinterpret_tensor")
ASSERTION = "assert_size_stride"
_KEEPS_DTYPE = re.compile(r"^extern_kernels\.|attention")
"""Library calls whose result has the dtype of their first tensor."""
_BUFFER = re.compile(r"buf\d+$")

Buffer = tuple[float, int]
"""Number of elements, and bytes of each. The number is NaN if a size is symbolic or unknown."""
UNKNOWN: Buffer = (math.nan, 0)


@dataclass(frozen=True, slots=True)
class KnownWork:
    """Work that is known before profiling: bytes of generated kernels, and the work of operators by name and shapes."""

    nbytes: Mapping[str, float]
    operators: Mapping[tuple[str, Shapes], Work]

    def work_of(self, event: Any) -> Work:
        """Return the work of a generated kernel or an operator, or the work of the operators within it."""
        if generated := kernel_name(event.name):
            return Work(self.nbytes.get(generated), None)
        if event.name in VIEWS:
            return Work(0.0, 0.0)
        work = self._operator_work(event) or _product(event) or _inplace_work(event)
        if work and work.flops is not None:
            return work
        within = _sum(
            [self.work_of(child) for child in event.cpu_children if is_operator(child.name)], event.name in MOVES
        )
        return Work(work.nbytes, within.flops) if work else within

    def _operator_work(self, event: Any) -> Work | None:
        """Return the work of the original model's operator of this name and shapes.

        An operator with an `out` argument has one tensor more. A compiled convolution has no tensor for its bias.
        """
        shapes = _shapes(event)
        for count in range(len(shapes), 0, -1):
            if work := self.operators.get((event.name, shapes[:count])):
                return work
        if "conv" not in event.name or len(shapes) < 2:
            return None
        same = (work for (name, its), work in self.operators.items() if name == event.name and its[:2] == shapes[:2])
        return next(same, None)


def is_operator(name: str) -> bool:
    """Return whether an event is an operator or a generated kernel."""
    return bool(_GENERATED.match(name)) or ("::" in name and " " not in name)


def kernel_name(name: str) -> str | None:
    """Return the name of a generated kernel without the graph's number, or None for another event."""
    hit = _GENERATED.match(name)
    return hit[1] if hit else None


def _sum(parts: list[Work], only_moves: bool) -> Work:
    """Add up the work of the operators within an operator.

    Unknown ones may compute anything but products. Compared with products their operations are few, and PyTorch's
    counter leaves them out as well.
    """
    nbytes, flops = [part.nbytes for part in parts], sum(part.flops or 0.0 for part in parts)
    total = sum(each or 0.0 for each in nbytes)
    is_known = bool(parts) and None not in nbytes and (total > 0 or only_moves)
    return Work(total if is_known else None, flops or (0.0 if only_moves else None))


def _shapes(event: Any) -> Shapes:
    """Return the shapes of an event's tensors, and of those in its lists, as `op_trace.shapes_of` does."""
    shapes: list[tuple[int, ...]] = []
    for shape in getattr(event, "structured_input_shapes", None) or event.input_shapes or ():
        within = shape if shape and isinstance(shape[0], (list, tuple)) else (shape,)
        shapes += [tuple(each) for each in within if each]
    return tuple(shapes)


def _input_bytes(event: Any, count: int) -> float | None:
    """Return the bytes of the first tensors of an event, by their shapes and dtypes, or None if unknown."""
    dtypes = getattr(event, "input_dtypes", None) or ()
    input_bytes = [
        (shape, _ITEM_BYTES.get(dtype)) for shape, dtype in zip(event.input_shapes, dtypes, strict=False) if shape
    ]
    if len(input_bytes) < count or any(item is None for _, item in input_bytes[:count]):
        return None
    return float(sum((item or 0) * math.prod(shape) for shape, item in input_bytes[:count]))


def _inplace_work(event: Any) -> Work | None:
    """Return the bytes of an operator that writes to its first tensor, or None for another one."""
    if not event.name.endswith("_") or not _shapes(event):
        return None
    input_bytes, written = _input_bytes(event, len(_shapes(event))), _input_bytes(event, 1)
    if input_bytes is None or written is None:
        return None
    return Work(input_bytes + written, 0.0 if event.name in MOVES else None)


def _product(event: Any) -> Work | None:
    """Return the work of a matrix product from its shapes and its dtype."""
    shapes, dtype = _shapes(event), next(iter(getattr(event, "input_dtypes", None) or ()), "")
    flops = product_flops(event.name, shapes, "complex" in dtype)
    if flops is None:
        return None
    operands = 3 if "add" in event.name else 2
    left, right = shapes[operands - 2 : operands]
    result = math.prod(left[:-1]) * (right[-1] if len(right) > 1 else 1)
    input_bytes, item = _input_bytes(event, operands), _ITEM_BYTES.get(dtype)
    return Work(None if input_bytes is None or item is None else input_bytes + item * result, flops)


def bytes_of_kernels(sources: Iterable[str]) -> dict[str, float]:
    """Return the bytes of each kernel's tensors, each tensor once, by the kernel's name.

    A kernel that is called several times counts with the mean of its calls. A kernel is left out if a size of its
    tensors is symbolic or unknown.
    """
    calls: dict[str, list[float]] = {}
    for source in sources:
        for name, nbytes in _kernel_calls(source):
            calls.setdefault(name, []).append(nbytes)
    means = {name: sum(each) / len(each) for name, each in calls.items()}
    return {name: mean for name, mean in means.items() if not math.isnan(mean)}


def _kernel_calls(source: str) -> Iterator[tuple[str, float]]:
    """Yield each call of a generated kernel in one file."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # with a C++ wrapper, the code is C++, too, and nothing is known
        return
    nodes = sorted((n for n in ast.walk(tree) if isinstance(n, (ast.Assign, ast.Expr))), key=lambda n: n.lineno)
    # The inputs' sizes come last in the file, but every call needs them.
    buffers = dict(made for node in nodes if "rand_strided" in ast.dump(node) and (made := _read_allocation(node, {})))
    for node in nodes:
        if made := _read_allocation(node, buffers):
            buffers[made[0]] = made[1]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if known := _read_assertion(node.value, buffers):
                buffers[known[0]] = known[1]
            elif name := _called_kernel(node.value):
                yield name, _bytes_of_call(node.value, buffers)


def _bytes_of_call(call: ast.Call, buffers: dict[str, Buffer]) -> float:
    names = {arg.id for arg in ast.walk(call) if isinstance(arg, ast.Name)}
    tensors = [name for name in names if name in buffers or _BUFFER.match(name)]
    return sum(math.prod(buffers.get(name, UNKNOWN)) for name in tensors)


def _read_assertion(call: ast.Call, buffers: dict[str, Buffer]) -> tuple[str, Buffer] | None:
    """Return the name and size of a buffer whose size the code asserts, if its dtype is known."""
    if not isinstance(call.func, ast.Name) or call.func.id != ASSERTION or len(call.args) < 2:
        return None
    name, size = call.args[:2]
    if not isinstance(name, ast.Name) or name.id not in buffers or not isinstance(size, (ast.Tuple, ast.List)):
        return None
    return name.id, (_numel(size), buffers[name.id][1])


def _read_allocation(node: ast.stmt, buffers: dict[str, Buffer]) -> tuple[str, Buffer] | None:
    """Return the name and size of a buffer that a statement allocates or derives from another buffer."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return None
    name, value = node.targets[0].id, node.value
    if isinstance(value, ast.Name) and value.id in buffers:
        return name, buffers[value.id]
    if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and value.value.id in buffers:
        return name, (math.nan, buffers[value.value.id][1])  # of several results; an assertion says its size
    if isinstance(value, ast.Call) and _KEEPS_DTYPE.search(ast.unparse(value.func)):
        first = next((a.id for a in value.args if isinstance(a, ast.Name) and a.id in buffers), None)
        return (name, (math.nan, buffers[first][1])) if first else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name) or value.func.id not in ALLOCATIONS:
        return None
    arguments = [*value.args, *(word.value for word in value.keywords)]
    size = next((a for a in arguments if isinstance(a, (ast.Tuple, ast.List))), None)
    if size is None:
        return None
    base = buffers.get(arguments[0].id) if isinstance(arguments[0], ast.Name) else None
    width = base[1] if base else next((w for a in arguments if (w := _width(a))), 0)
    return name, (_numel(size), width)


def _numel(size: ast.Tuple | ast.List) -> float:
    sizes = [e.value if isinstance(e, ast.Constant) and isinstance(e.value, int) else math.nan for e in size.elts]
    return float(math.prod(sizes))


def _width(argument: ast.expr) -> int:
    dtype = getattr(torch, argument.attr, None) if isinstance(argument, ast.Attribute) else None
    return dtype.itemsize if isinstance(dtype, torch.dtype) else 0


def _called_kernel(call: ast.Call) -> str | None:
    """Return the name of the generated kernel that a call runs: `cpp_fused_…(…)` or `triton_….run(…)`."""
    func = call.func
    if isinstance(func, ast.Name) and func.id.startswith("cpp_"):
        return func.id
    if isinstance(func, ast.Attribute) and func.attr == "run" and isinstance(func.value, ast.Name):
        return func.value.id if func.value.id.startswith("triton_") else None
    return None
