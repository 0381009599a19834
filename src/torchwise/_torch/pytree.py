"""Trees of containers: PyTorch's own functions on them, which have no public name."""

from __future__ import annotations

from torch.utils._pytree import (
    SUPPORTED_NODES,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_is_leaf,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
)

__all__ = [
    "SUPPORTED_NODES",
    "keystr",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_is_leaf",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
]
