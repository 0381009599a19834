"""How many bytes each generated kernel is given, read from the Python that Inductor writes around its kernels.

The profiler knows the shapes of a library's calls, but not of generated ones. The code that calls those allocates every
buffer with its size (`empty_strided_cpu(...)`), and ends with inputs to try it on (`rand_strided(...)`).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator

import torch

ALLOCATIONS = ("empty_strided_cpu", "empty_strided_cuda", "empty_strided", "rand_strided", "reinterpret_tensor")


Buffer = tuple[float, int]
"""Elements, and bytes of each; not a number of elements where a size is symbolic."""


def bytes_of_kernels(sources: Iterable[str]) -> dict[str, float]:
    """Return the bytes of the tensors that each kernel is given, each tensor once, by the kernel's name.

    A kernel that is called several times counts with the mean of its calls; one with a symbolic size is left out.
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
    except SyntaxError:  # C++ where the wrapper is C++, too: nothing is known then
        return
    nodes = sorted((n for n in ast.walk(tree) if isinstance(n, (ast.Assign, ast.Expr))), key=lambda n: n.lineno)
    # The inputs' sizes come last in the file, but every call needs them.
    buffers = dict(made for node in nodes if "rand_strided" in ast.dump(node) and (made := _made(node, {})))
    for node in nodes:
        if made := _made(node, buffers):
            buffers[made[0]] = made[1]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and (name := _kernel(node.value)):
            given = {arg.id for arg in ast.walk(node.value) if isinstance(arg, ast.Name)} & buffers.keys()
            yield name, sum(math.prod(buffers[buffer]) for buffer in given)


def _made(node: ast.stmt, buffers: dict[str, Buffer]) -> tuple[str, Buffer] | None:
    """Return the name and size of a buffer that a statement makes: anew, or of another one."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return None
    name, value = node.targets[0].id, node.value
    if isinstance(value, ast.Name) and value.id in buffers:
        return name, buffers[value.id]
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name) or value.func.id not in ALLOCATIONS:
        return None
    given = [*value.args, *(word.value for word in value.keywords)]
    size = next((a for a in given if isinstance(a, (ast.Tuple, ast.List))), None)
    if size is None:
        return None
    whole = buffers.get(given[0].id) if isinstance(given[0], ast.Name) else None
    width = whole[1] if whole else next((w for a in given if (w := _width(a))), 0)
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
