"""Traverse nested containers of tensors, in the same way as PyTorch.

Dataclasses that are not registered with it are walked field by field, and
kinds of dict such as `transformers.BatchEncoding` item by item. So models of them need no preparation.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import operator
import re
from collections import UserDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from torchwise._torch import pytree as _pytree
from torchwise.workload import layouts
from torchwise.workload.object_parts import describe, extra_attributes, holds_tensors, is_cached

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLAIN = frozenset({bool, int, float, complex, str, type(None)})
"""Types of leaves that hold nothing and that their value says everything about."""


def map_tensors(
    function: Callable[[torch.Tensor], Any], tree: Any, arrays: Callable[[NDArray[Any]], Any] | None = None
) -> Any:
    """Return `tree` with `function` applied to each tensor in it, and `arrays` to each array of NumPy.

    Other leaves are kept as they are.
    """

    def visit(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return function(leaf)
        if arrays is not None and _is_array(leaf):
            return arrays(leaf)
        contents = leaf_contents(leaf)
        return leaf if contents is None else _with(leaf, map_tensors(function, contents, arrays))

    return _pytree.tree_map(visit, tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return `tree` with `function` applied to each leaf: tensors, plain values, and objects that are not walked."""

    def visit(leaf: Any) -> Any:
        contents = leaf_contents(leaf)
        return function(leaf) if contents is None else _with(leaf, map_leaves(function, contents))

    return _pytree.tree_map(visit, tree)


def _is_array(leaf: Any) -> bool:
    import numpy  # here, as the command line is asked about itself without it

    return isinstance(leaf, numpy.ndarray)


def list_named_leaves(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """List every leaf with its path, such as `("[0]['logits']", tensor)`. A lone leaf has the path ""."""
    found: list[tuple[str, Any]] = []
    try:
        leaves = _pytree.tree_flatten_with_path(tree)[0]
    except ValueError:  # a class in it is registered without names for its parts
        return [pair for name, part in _list_named_parts(tree) for pair in list_named_leaves(part, prefix + name)]
    for path, leaf in leaves:
        name = prefix + _pytree.keystr(path)
        contents = leaf_contents(leaf)
        if contents is None:
            found.append((name, leaf))
        elif dataclasses.is_dataclass(leaf):
            for field, value in contents.items():
                found += list_named_leaves(value, f"{name}.{field}")
        else:
            found += list_named_leaves(contents, name)
            for attribute, value in extra_attributes(leaf).items():
                found += list_named_leaves(value, f"{name}.{attribute}")
    return found


def _list_named_parts(node: Any) -> list[tuple[str, Any]]:
    """List the parts of one node, by their key, or by the attribute in which they lie, or else by their position."""

    def is_part(thing: Any) -> bool:
        return thing is not node

    with contextlib.suppress(ValueError):
        keyed = _pytree.tree_flatten_with_path(node, is_leaf=is_part)[0]
        return [(_pytree.keystr(path), part) for path, part in keyed]
    parts = _pytree.tree_flatten(node, is_leaf=is_part)[0]
    names = {id(value): f".{name}" for name, value in getattr(node, "__dict__", {}).items()}
    return [(names.pop(id(part), f"[{position}]"), part) for position, part in enumerate(parts)]


def readable(path: str) -> str:
    """Return a path as one reads it: "momentum.low[2]" for "['momentum']['low'][2]"."""
    return re.sub(r"\['([^\W\d]\w*)'\]", r".\1", path).lstrip(".")


def is_leaf(thing: Any) -> bool:
    """Whether its contents are not traversed."""
    return _pytree.tree_is_leaf(thing) and leaf_contents(thing) is None


def tensors(tree: Any) -> list[torch.Tensor]:
    """List every tensor in `tree`, in order, once for each place.

    This runs on every call of a program, so no paths are made (`list_named_leaves`).
    """
    found: list[torch.Tensor] = []
    _gather((tree,), found, torch.Tensor)
    return found


def _gather(children: Iterable[Any], found: list[torch.Tensor], tensor: type[torch.Tensor]) -> None:
    for child in children:
        kind = type(child)
        if kind is tensor:
            found.append(child)
        elif kind is tuple or kind is list:
            _gather(child, found, tensor)
        elif kind is dict:
            _gather(child.values(), found, tensor)
        elif isinstance(child, tensor):
            found.append(child)
        elif kind not in PLAIN:
            _gather(describe(child).values, found, tensor)


def form(tree: Any) -> str:
    """Describe the containers of a tree, empty ones included, with `*` for each leaf."""
    leaves, spec = _pytree.tree_flatten(tree)
    parts = [form(contents) for leaf in leaves if (contents := leaf_contents(leaf)) is not None]
    return " ".join([_form_of(spec), *parts])


def _form_of(spec: Any) -> str:
    if spec.type is None:
        return "*"
    name = spec.context.__name__ if isinstance(spec.context, type) else spec.type.__name__
    children = spec.children() if hasattr(spec, "children") else spec.children_specs  # torch 2.11
    return f"{name}({', '.join(map(_form_of, children))})"


def clone(tree: Any) -> Any:
    """Copy every tensor, keeping strides and `requires_grad`, and every array: no call can touch the original."""
    return map_tensors(lambda t: copy_of(t).requires_grad_(t.requires_grad), tree, lambda array: array.copy("K"))


def copy_of(tensor: torch.Tensor, device: torch.device | str | None = None) -> torch.Tensor:
    """Copy one tensor, to `device` if given, with the strides it has: gaps and expanded dimensions included.

    The copy is detached. Tensors of other layouts than strided are copied as PyTorch copies them.
    """
    tensor = tensor.detach()
    copied = tensor.clone() if device is None else tensor.to(device, copy=True)
    plain = tensor.layout is torch.strided and not tensor.is_nested and type(tensor) is torch.Tensor
    if not plain or copied.stride() == tensor.stride():
        return copied
    base = base_of(tensor)
    restrided = torch.empty_strided(base.shape, base.stride(), dtype=tensor.dtype, device=copied.device)
    return restrided.copy_(base).expand(tensor.shape)


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the view of a strided tensor that holds each value of an expanded dimension once."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def write(into: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values` into a tensor of the same layout. A tensor with expanded dimensions is written through its base.

    Autograd does not see it. (`Tensor.copy_` refuses an expanded tensor, and may refuse other layouts.)
    """
    if not layouts.is_strided(into):
        with torch.no_grad():
            into.copy_(values)  # and not into `detach()` of a COO tensor, which gets memory of its own
        return
    into, values = into.detach(), values.detach()
    for dim, (size, stride) in enumerate(zip(into.shape, into.stride(), strict=True)):
        if stride == 0 and size > 1:
            into, values = into.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    into.copy_(values)


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Say whether two tensors agree in layout, dtype, shape and every value. NaN equals NaN."""
    if (a.layout, a.dtype, a.is_nested) != (b.layout, b.dtype, b.is_nested):
        return False
    a, b = a.detach(), b.detach().to(a.device)
    if not layouts.is_strided(a):
        if layouts.layout_of(a) != layouts.layout_of(b):
            return False
        of_a, of_b = layouts.list_strided_parts(a), layouts.list_strided_parts(b)
        return len(of_a) == len(of_b) and all(equal(x, y) for (_, x), (_, y) in zip(of_a, of_b, strict=True))
    if a.shape != b.shape:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if a.is_floating_point() and a.element_size() == 1:  # float8: not compared by PyTorch itself
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    if torch.equal(a, b):
        return True
    return a.is_floating_point() and bool(((a == b) | (a.isnan() & b.isnan())).all())


def leaf_contents(leaf: Any) -> dict[Any, Any] | None:
    """Return a leaf's contents if it is walked here: a dataclass's fields, or the items of a kind of dict. Else None.

    It covers kinds of dict alone, as a copy whose items are set anew is like them. A copy of another mapping may share
    the object that holds the items. A mapping that also has its tensors as attributes would keep the old ones there.
    """
    if isinstance(leaf, torch.Tensor):  # the usual case is the quickest
        return None
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        return {f.name: getattr(leaf, f.name) for f in dataclasses.fields(leaf) if hasattr(leaf, f.name)}
    if not isinstance(leaf, (dict, UserDict)):
        return None
    return None if holds_tensors(leaf, extra_attributes(leaf)) else dict(leaf)


def _with(leaf: Any, contents: dict[Any, Any]) -> Any:
    """Copy a leaf that is walked here, with other values in it.

    A dataclass made anew would compute its `__post_init__` and defaults once more. A cached property holds a value
    computed from the old values, and is left out.
    """
    copied, params = copy.copy(leaf), getattr(leaf, "__dataclass_params__", None)
    write: Callable[[Any, Any, Any], None] = operator.setitem
    if params is not None:
        write = object.__setattr__ if params.frozen else setattr
    for name, value in contents.items():
        write(copied, name, value)
    for name in {*getattr(copied, "__dict__", ())}.difference(contents):
        if is_cached(leaf, name):
            del copied.__dict__[name]
    return copied
