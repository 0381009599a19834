"""What makes two workloads the same, so that what was measured for one holds for the other.

In the identity: the code of the callable and of every module class that is not PyTorch's own; names, shapes and
dtypes of parameters and buffers; which modules are in training mode; shapes, dtypes and strides of the inputs, plain
input values, and the weights of the mix; the mode. Never: the values of weights or tensors, the name of the target,
the seed, the number of calls, the machine (`Environment` has that).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable
from typing import Any

from torchwise.workload.trees import named_leaves
from torchwise.workload.workload import Example, Workload


def identity(workload: Workload, mode: str) -> str:
    """Return 16 hex digits of SHA-256 over everything the module docstring lists."""
    inputs = [[example.weight, describe_example(example)] for example in workload.examples]
    return _digest({"mode": mode, "structure": structure(workload.call), "inputs": inputs})


def structure(call: Callable[..., Any]) -> str:
    """Return 16 hex digits for the model alone: what must be equal for a plan to fit it, whatever the inputs."""
    return _digest({"code": _code(call), "state": _state(call)})


def describe_example(example: Example) -> str:
    """Describe the inputs in a line: "path dtype[shape] strides" or "path value" for each leaf."""
    leaves = named_leaves((example.args, dict(example.kwargs)))
    return "; ".join(f"{path} {_describe_leaf(leaf)}" for path, leaf in leaves)


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _describe_leaf(leaf: Any) -> str:
    import torch

    if isinstance(leaf, torch.Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        strides = tuple(leaf.stride()) if leaf.layout is torch.strided else leaf.layout
        return f"{dtype}{list(leaf.shape)} {strides}"
    if leaf is None or isinstance(leaf, (bool, int, float, complex, str, bytes)):
        return repr(leaf)
    return type(leaf).__qualname__


def _state(call: Any) -> list[str]:
    import torch

    if not isinstance(call, torch.nn.Module):
        return []
    tensors = [*call.named_parameters(), *call.named_buffers()]
    modes = [f"{name} training" for name, module in call.named_modules() if module.training]
    return [f"{name} {tensor.dtype}{list(tensor.shape)}" for name, tensor in tensors] + modes


def _code(call: Any) -> list[str]:
    """Return the sources that decide what `call` computes; bytecode where there is no source file."""
    import torch

    if isinstance(call, torch.nn.Module):
        classes = {type(module) for module in call.modules()}
        return [*sorted(_source(cls) for cls in classes), str(call)]
    if isinstance(call, functools.partial):
        return [*_code(call.func), repr(sorted(call.keywords))]
    if inspect.isfunction(call) or inspect.ismethod(call):
        return [_source(call)]
    return [_source(type(call))]


def _source(thing: type | Callable[..., Any]) -> str:
    name = f"{thing.__module__}.{thing.__qualname__}"
    if name.startswith("torch."):  # the version of torch, in the environment, already says it
        return name
    try:
        return f"{name}\n{inspect.getsource(thing)}"
    except (OSError, TypeError):  # typed at a prompt, or built in
        code = getattr(thing, "__code__", None)
        return f"{name}\n{code.co_code.hex()}{code.co_consts!r}" if code else name
