"""Functions of PyTorch that a model's code calls by itself, replaced by others: the counterpart of modules.

The copy's `forward` runs under a mode that calls another function in the place of one. Compilers trace the mode, and
nothing of it is left in their code. In eager it is asked at each function, which takes time. So only models
whose code calls such a function run under it. That is read from their code, with its global variables: no name counts,
only the function that is behind it.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import math
import operator
import sys
import types
from collections.abc import Collection, Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from torch.fx import Graph, Node
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from torchwise.compile.guards.reachable_code import find_enclosed
from torchwise.compile.transforms.function_graphs.nodes import argument, name_of

MARK, DOT = "@", "/"
"""Separates the modes from the class in the name of a derived class, and stands for the dots, which pickle splits."""


class TanhGelu(TorchFunctionMode):
    """Approximates GELU by tanh."""

    FUNCTIONS: ClassVar = (functional.gelu,)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, or the approximation."""
        kwargs = kwargs or {}
        if func is functional.gelu and kwargs.get("approximate", "none") == "none":
            return func(*args, **{**kwargs, "approximate": "tanh"})
        return func(*args, **kwargs)


class WithGroupNorm(TorchFunctionMode):
    """Has instance norms without running statistics be group norms with a group for each channel."""

    FUNCTIONS: ClassVar = (functional.instance_norm,)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, or the group norm."""
        if func is functional.instance_norm:
            return _norm_by_groups(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _norm_by_groups(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    is_plain = running_mean is None and running_var is None and use_input_stats
    if not is_plain or input.dim() < 3 or math.prod(input.shape[2:]) == 1:  # the norm itself refuses a single number
        return functional.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    return functional.group_norm(input, input.shape[1], weight, bias, eps)


class WithoutDropout(TorchFunctionMode):
    """Leaves dropout out, also that of fused attention."""

    FUNCTIONS: ClassVar = (
        functional.dropout,
        functional.dropout1d,
        functional.dropout2d,
        functional.dropout3d,
        functional.alpha_dropout,
        functional.feature_alpha_dropout,
        torch.dropout,
        torch.alpha_dropout,
        torch.feature_dropout,
        torch.feature_alpha_dropout,
        functional.scaled_dot_product_attention,
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, or return the input of dropout."""
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return _attend_without_dropout(*args, **kwargs)
        if _is_dropout(func):
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


def _is_dropout(func: Any) -> bool:
    return (
        func is functional.dropout
        or func is functional.dropout1d
        or func is functional.dropout2d
        or func is functional.dropout3d
        or func is functional.alpha_dropout
        or func is functional.feature_alpha_dropout
        or func is torch.dropout
        or func is torch.alpha_dropout
        or func is torch.feature_dropout
        or func is torch.feature_alpha_dropout
    )


def _attend_without_dropout(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - it is left out
    is_causal: bool = False,
    **others: Any,
) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **others)


Swap = type[TanhGelu | WithGroupNorm | WithoutDropout]


# A forward for each, which names its mode: no closure or table is behind it, so that code which is compiled ahead
# depends on code alone.


def _approximate(self: Any, *args: Any, **kwargs: Any) -> Any:
    with TanhGelu():
        return self.forward_by_TanhGelu(*args, **kwargs)


def _use_group_norm(self: Any, *args: Any, **kwargs: Any) -> Any:
    with WithGroupNorm():
        return self.forward_by_WithGroupNorm(*args, **kwargs)


def _leave_dropout_out(self: Any, *args: Any, **kwargs: Any) -> Any:
    with WithoutDropout():
        return self.forward_by_WithoutDropout(*args, **kwargs)


FORWARDS: dict[Swap, Any] = {
    TanhGelu: _approximate,
    WithGroupNorm: _use_group_norm,
    WithoutDropout: _leave_dropout_out,
}


def swap(model: nn.Module, mode: Swap) -> nn.Module:
    """Have the forward of a copy call other functions, and return it."""
    model.__class__ = _derive_class(type(model), mode)  # type: ignore[arg-type]
    return model


@functools.cache
def _derive_class(cls: type[nn.Module], mode: Swap) -> type[nn.Module]:
    """Return a class whose forward runs under a mode. There is one for each pair, so that code is compiled once."""
    name = f"{mode.__name__}{MARK}{cls.__module__}:{cls.__qualname__}".replace(".", DOT)
    names = {"forward": FORWARDS[mode], f"forward_by_{mode.__name__}": cls.forward, "__module__": __name__}
    return types.new_class(name, (cls,), exec_body=lambda own: own.update(names))


def __getattr__(name: str) -> type[nn.Module]:
    """Return such a class by its name, which code that was compiled ahead has.

    Raises:
        AttributeError: there is no such class.
    """
    mode, mark, place = name.partition(MARK)
    if not mark:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, cls = place.partition(":")
    if MARK in cls:  # two modes
        return _derive_class(__getattr__(cls), globals()[mode])  # type: ignore[arg-type]
    found = operator.attrgetter(cls.replace(DOT, "."))(importlib.import_module(module.replace(DOT, ".")))
    return _derive_class(found, globals()[mode])


def calls_some_of(model: nn.Module, functions: Collection[Any]) -> bool:
    """Whether the code of a model calls one of some functions by itself, and its forward can be replaced."""
    wanted, visited = set(map(id, functions)), set[int]()
    if "forward" in vars(model) or not isinstance(inspect.getattr_static(model, "forward"), types.FunctionType):
        return False
    pending = [value for part in model.modules() for value in (*vars(part).values(), *_iter_members(type(part)))]
    while pending:
        value = _unwrap(pending.pop())
        if id(value) in wanted:
            return True
        if isinstance(value, types.FunctionType) and id(value) not in visited and not _is_library(value.__module__):
            visited.add(id(value))
            pending += _iter_read(value)
    return False


def _iter_members(cls: type) -> Iterator[Any]:
    for base in cls.__mro__:
        if not _is_library(base.__module__):
            yield from vars(base).values()


def _is_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _unwrap(value: Any) -> Any:
    """Return the function in a method, a descriptor or a partial, or the value itself."""
    for name in ("__func__", "fget", "func"):
        if isinstance(value, _WRAPPERS) and hasattr(value, name):
            return getattr(value, name)
    return value


_WRAPPERS = (staticmethod, classmethod, property, functools.cached_property, functools.partial, types.MethodType)
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy"}


def _iter_read(function: types.FunctionType) -> Iterator[Any]:
    """Yield the objects that a function's code reads: its closure, global variables, and those of modules in them."""
    yield from find_enclosed(function)
    pending = [function.__code__]
    while pending:
        code, value = pending.pop(), None
        pending += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                value = function.__globals__.get(step.argval)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, types.ModuleType):
                value = getattr(value, step.argval, None)
            else:
                value = None
            yield value


def calls_exact_gelu(graph: Graph) -> bool:
    """Whether a recorded call runs GELU by the error function."""
    return any(name_of(node) == "gelu" and node.kwargs.get("approximate", "none") == "none" for node in graph.nodes)


def calls_instance_norm(graph: Graph) -> bool:
    """Whether a recorded call runs an instance norm without running statistics."""
    return any(map(_is_plain_norm, graph.nodes))


def calls_dropout(graph: Graph) -> bool:
    """Whether a recorded call runs dropout that is on."""
    return any(map(_is_dropout_on, graph.nodes))


def _is_plain_norm(node: Node) -> bool:
    has_statistics = any(argument(node, *one) is not None for one in ((1, "running_mean"), (2, "running_var")))
    return name_of(node) == "instance_norm" and not has_statistics and argument(node, 5, "use_input_stats", True)


def _is_dropout_on(node: Node) -> bool:
    name = name_of(node)
    if name == "scaled_dot_product_attention":
        return bool(argument(node, 4, "dropout_p", 0.0))
    is_on = argument(node, 2, "training", node.kwargs.get("train", True)) and argument(node, 1, "p", 0.5)
    return name in _DROPOUTS and bool(is_on)


_DROPOUTS = {one.__name__ for one in WithoutDropout.FUNCTIONS} - {"scaled_dot_product_attention"}
