"""What a whole process shares: active modes, hooks of all modules, and kernels that replace PyTorch's own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torchwise._torch.dispatch import DISPATCH_MODES, FUNCTION_MODES
from torchwise._torch.private_name import PrivateName

MODULE = "torch.nn.modules.module"
FORWARD_PRE_HOOKS = PrivateName(MODULE, "_global_forward_pre_hooks")
FORWARD_HOOKS = PrivateName(MODULE, "_global_forward_hooks")
BACKWARD_PRE_HOOKS = PrivateName(MODULE, "_global_backward_pre_hooks")
BACKWARD_HOOKS = PrivateName(MODULE, "_global_backward_hooks")
HOOKS = (FORWARD_PRE_HOOKS, FORWARD_HOOKS, BACKWARD_PRE_HOOKS, BACKWARD_HOOKS)
SAVED_HOOKS = PrivateName("torch._C", "_autograd._top_saved_tensors_default_hooks")
MULTITHREADING = PrivateName("torch._C", "_is_multithreading_enabled")
KERNELS = PrivateName("torch.library", "_impls")
"""Names of all kernels that Python registered, such as "aten/sum/CPU"."""
OWN_OPERATORS = "aten/"
SHAPES_ONLY = "/Meta"


def count_modes() -> int:
    """Return how many modes are active that see or replace operators and functions."""
    return int(DISPATCH_MODES.get()()) + int(FUNCTION_MODES.get()())


def count_module_hooks() -> int:
    """Return how many hooks there are for all modules."""
    return sum(len(name.get()) for name in HOOKS)


def read_saved_hooks() -> Any:
    """Return the innermost hooks of all tensors that are saved for backward passes, or None."""
    return SAVED_HOOKS.get()(True)


def is_multithreaded() -> bool:
    """Return whether backward passes may use several threads."""
    return bool(MULTITHREADING.get()())


def count_replaced_kernels() -> int:
    """Return how many kernels of PyTorch's own operators were registered in Python, besides those for shapes alone."""
    return _count_kernels(len(KERNELS.get()))


@lru_cache(maxsize=1)
def _count_kernels(_among: int) -> int:
    """Count them anew only if there are others, as PyTorch itself registers thousands."""
    return sum(name.startswith(OWN_OPERATORS) and not name.endswith(SHAPES_ONLY) for name in KERNELS.get())
