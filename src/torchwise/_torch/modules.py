"""Modules: their calls, base classes of kinds, classes that parametrizations make, and groups of processes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.dropout import _DropoutNd as Dropout

from torchwise._torch.private_name import PrivateName
from torchwise.errors import UnsupportedError

__all__ = ["BatchNorm", "Dropout", "NormBase"]

HAS_GLOBAL_HOOK = PrivateName("torch.nn.modules.module", "_has_any_global_hook")
MODULE_CALL = torch.nn.Module.__call__
"""The call of every module, as PyTorch defines it, also while a call hook replaces it."""
DOES_NO_MORE = set(getattr(getattr(MODULE_CALL, "__code__", None), "co_names", ())) == {
    "_compiled_call_impl",
    "_call_impl",
}
"""Whether this PyTorch's `Module.__call__` only chooses between these two functions, so that a caller may do so."""
CALL_IMPL = torch.nn.Module._call_impl
"""Runs a module's hooks and its forward."""
PARAMETRIZED_CLASS = PrivateName("torch.nn.utils.parametrize", "_inject_new_class")
PARAMETRIZED_PROPERTY = PrivateName("torch.nn.utils.parametrize", "_inject_property")
SET_GROUP_TIMEOUT = PrivateName("torch.distributed.distributed_c10d", "_set_pg_timeout")
"""Sets how long the ranks of a group wait for each other."""


def list_global_hooks() -> tuple[dict[Any, Any], ...]:
    """Return the dicts that `HAS_GLOBAL_HOOK` asks for hooks of all modules.

    Raises:
        UnsupportedError: it asks for anything else in this PyTorch.
    """
    asks = HAS_GLOBAL_HOOK.get("a served plan")
    code = getattr(asks, "__code__", None)
    found = tuple(asks.__globals__.get(name) for name in code.co_names) if code is not None else ()
    if not found or not all(isinstance(one, dict) for one in found):
        raise UnsupportedError(f"{HAS_GLOBAL_HOOK} of torch {torch.__version__} reads more than dicts of hooks")
    return found
