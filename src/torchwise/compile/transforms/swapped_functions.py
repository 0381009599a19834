"""Functions of PyTorch that a model's code calls by itself, replaced by others: the counterpart of modules.

The copy's `forward` runs under a mode that calls another function in the place of one. Compilers trace the mode, and
nothing of it is left in their code. In eager it is asked at each function, which takes time. So only models
whose code calls such a function run under it. That is read from their code, with its global variables: no name counts,
only the function that is behind it.

In eager, a checkpoint that keeps gradients (`torch.utils.checkpoint`, not reentrant) is refused: it calls the functions
again in the backward pass, where no mode is.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import inspect
import math
import operator
import sys
import types
import weakref
from collections.abc import Collection, Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from torch.autograd.graph import disable_saved_tensors_hooks
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
        """Call a function, or return the numbers that dropout is given."""
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return _attend_without_dropout(*args, **kwargs)
        if _is_dropout(func):
            is_alpha = func is functional.alpha_dropout or func is functional.feature_alpha_dropout
            return (_leave_alpha_out if is_alpha else leave_out)(*args, **kwargs)
        return func(*args, **kwargs)


def leave_out(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool = True
) -> torch.Tensor:
    """Return the input where dropout would, too, and a new tensor with its numbers where dropout makes one."""
    return input.clone() if p and training and train and not inplace else input


def _leave_alpha_out(
    input: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> torch.Tensor:
    return leave_out(input, p, training, inplace)


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


def _refuse_checkpoints() -> Any:
    """Return a context in which functions that are called again in the backward pass are refused, but for compilers."""
    if torch.compiler.is_compiling():
        return contextlib.nullcontext()
    context = contextlib.ExitStack()
    with contextlib.suppress(RuntimeError):  # one around the whole model calls its forward again, which sets the mode
        context.enter_context(disable_saved_tensors_hooks(_NO_CHECKPOINT))
    return context


_NO_CHECKPOINT = (
    "functions of the model are replaced, but it calls them again in the backward pass (torch.utils.checkpoint), where "
    "its own would run, or it has hooks for saved tensors. Compile it, or leave out the checkpoint or the replacement"
)


# A forward for each, which names its mode: no closure or table is behind it, so that code which is compiled ahead
# depends on code alone.


def _approximate(self: Any, *args: Any, **kwargs: Any) -> Any:
    with TanhGelu(), _refuse_checkpoints():
        return self.forward_by_TanhGelu(*args, **kwargs)


def _use_group_norm(self: Any, *args: Any, **kwargs: Any) -> Any:
    with WithGroupNorm(), _refuse_checkpoints():
        return self.forward_by_WithGroupNorm(*args, **kwargs)


def _leave_dropout_out(self: Any, *args: Any, **kwargs: Any) -> Any:
    with WithoutDropout(), _refuse_checkpoints():
        return self.forward_by_WithoutDropout(*args, **kwargs)


FORWARDS: dict[Swap, Any] = {
    TanhGelu: _approximate,
    WithGroupNorm: _use_group_norm,
    WithoutDropout: _leave_dropout_out,
}


def swap(model: nn.Module, mode: Swap) -> nn.Module:
    """Have the forward of a copy call other functions, and return it."""
    model.__class__ = _derive_class(type(model), mode)
    return model


_derived: weakref.WeakValueDictionary[tuple[Any, ...], type[nn.Module]] = weakref.WeakValueDictionary()


def _derive_class(cls: type[nn.Module], mode: Swap) -> type[nn.Module]:
    """Return a class whose forward runs under a mode: one for each forward, so that code is compiled once."""
    key = cls, mode, cls.forward
    if (found := _derived.get(key)) is not None:
        return found
    name = f"{mode.__name__}{MARK}{cls.__module__}:{cls.__qualname__}".replace(".", DOT)
    names = {"forward": FORWARDS[mode], f"forward_by_{mode.__name__}": cls.forward, "__module__": __name__}
    return _derived.setdefault(key, types.new_class(name, (cls,), exec_body=lambda own: own.update(names)))


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
        return _derive_class(__getattr__(cls), globals()[mode])
    found = operator.attrgetter(cls.replace(DOT, "."))(importlib.import_module(module.replace(DOT, ".")))
    return _derive_class(found, globals()[mode])


def can_replace_forward(model: nn.Module) -> bool:
    """Whether a copy's class may have another forward: it is a plain method, and the model has none of its own."""
    return "forward" not in vars(model) and isinstance(inspect.getattr_static(model, "forward"), types.FunctionType)


def calls_some_of(model: nn.Module, functions: Collection[Any]) -> bool:
    """Whether the code of a model calls one of some functions by itself."""
    wanted, visited = set(map(id, functions)), set[int]()
    pending = [value for part in model.modules() for value in (*vars(part).values(), *_iter_members(type(part)))]
    while pending:
        value = _unwrap(pending.pop())
        if id(value) in wanted:
            return True
        if id(value) in visited:
            continue
        if isinstance(value, types.FunctionType) and not _is_library(value.__module__):
            visited.add(id(value))
            pending += _iter_read(value)
        elif isinstance(value, (dict, list, tuple)):  # such as a table of activations by their names
            visited.add(id(value))
            pending += dict.values(value) if isinstance(value, dict) else value
    return False


def _iter_members(cls: type) -> Iterator[Any]:
    for base in cls.__mro__:
        if not _is_library(base.__module__):  # of what `__init__` reads, the model keeps what it needs
            yield from (value for name, value in vars(base).items() if name != "__init__")


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
    """Yield the objects that code reads: its closure, defaults, global variables, and those of modules in them."""
    yield from find_enclosed(function)
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
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
