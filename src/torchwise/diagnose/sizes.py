"""Count the bytes of each generated kernel's tensors, read from the Python that Inductor writes around its kernels.

The profiler knows the shapes of a library's calls, but not of generated ones. The Python code around those allocates
every buffer with its size (`empty_strided_cpu(...)`) and asserts the size of a library's results
(`assert_size_stride(...)`). It ends with inputs to try it on (`rand_strided(...)`).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator

import torch

ALLOCATIONS = ("empty_strided_cpu", "empty_strided_cuda", "empty_strided", "rand_strided", "reinterpret_tensor")
ASSERTION = "assert_size_stride"
_KEEPS_DTYPE = re.compile(r"^extern_kernels\.|attention")
"""Library calls whose result has the dtype of their first tensor."""
_BUFFER = re.compile(r"buf\d+$")

Buffer = tuple[float, int]
"""Number of elements, and bytes of each.

The number is NaN if a size is symbolic or unknown.
"""
UNKNOWN: Buffer = (math.nan, 0)


def bytes_of_kernels(sources: Iterable[str]) -> dict[str, float]:
    """Return the bytes of each kernel's tensors, each tensor once, by the kernel's name.

    A kernel that is called several times counts with the mean of its calls. A kernel is left out if a size of its
    tensors is symbolic or unknown.
    """
    calls: dict[str, list[float]] = {}
    for source in sources:
        for name, nbytes in _calls(source):
            calls.setdefault(name, []).append(nbytes)
    means = {name: sum(each) / len(each) for name, each in calls.items()}
    return {name: mean for name, mean in means.items() if not math.isnan(mean)}


def _calls(source: str) -> Iterator[tuple[str, float]]:
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
            elif name := _kernel(node.value):
                yield name, _bytes(node.value, buffers)


def _bytes(call: ast.Call, buffers: dict[str, Buffer]) -> float:
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


def _kernel(call: ast.Call) -> str | None:
    """Return the name of the generated kernel that a call runs: `cpp_fused_…(…)` or `triton_….run(…)`."""
    func = call.func
    if isinstance(func, ast.Name) and func.id.startswith("cpp_"):
        return func.id
    if isinstance(func, ast.Attribute) and func.attr == "run" and isinstance(func.value, ast.Name):
        return func.value.id if func.value.id.startswith("triton_") else None
    return None
