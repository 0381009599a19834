"""Nested containers of tensors, walked the way PyTorch itself walks them.

All use of `torch.utils._pytree` sits here. Dataclasses that nobody registered with it are walked field by field,
so that models returning them need no preparation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """Return `tree` with `function` applied to each tensor in it; other leaves are kept as they are."""
    import torch
    from torch.utils import _pytree

    def visit(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return function(leaf)
        if _is_plain_dataclass(leaf):
            changed = {f.name: map_tensors(function, getattr(leaf, f.name)) for f in _init_fields(leaf)}
            return dataclasses.replace(leaf, **changed)
        return leaf

    return _pytree.tree_map(visit, tree)


def named_leaves(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """List every leaf with its path, such as `("[0]['logits']", tensor)`; a lone leaf has the path ""."""
    from torch.utils import _pytree

    found: list[tuple[str, Any]] = []
    for path, leaf in _pytree.tree_flatten_with_path(tree)[0]:
        name = prefix + _pytree.keystr(path)
        if _is_plain_dataclass(leaf):
            for field in _init_fields(leaf):
                found += named_leaves(getattr(leaf, field.name), f"{name}.{field.name}")
        else:
            found.append((name, leaf))
    return found


def tensors(tree: Any) -> list[torch.Tensor]:
    """List every tensor in `tree`, in order, once per place it stands in."""
    import torch

    return [leaf for _, leaf in named_leaves(tree) if isinstance(leaf, torch.Tensor)]


def clone(tree: Any) -> Any:
    """Copy every tensor, keeping strides and `requires_grad`, so that a call cannot touch the original."""
    return map_tensors(lambda t: t.detach().clone().requires_grad_(t.requires_grad), tree)


def _is_plain_dataclass(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)


def _init_fields(leaf: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(leaf) if field.init]
