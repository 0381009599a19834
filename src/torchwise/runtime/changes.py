"""What changed since a plan was applied, in the model itself or around its calls, so that the plan may not answer."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn.modules import module as modules

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


class Changes:
    """Looks at what a plan enters below: the module's own call, its mode and hooks, and modes around all operators.

    What is inside a module is looked at by whoever made something of it (`realize.watch`).
    """

    def __init__(self, original: Any, *, inference: bool) -> None:
        self._original, self._kind = original, type(original)
        self._state = vars(original) if isinstance(original, torch.nn.Module) else None
        state = self._state or {}
        self._training, self._forward = getattr(original, "training", None), state.get("forward")
        kinds = HOOKS if inference else HOOKS + BACKWARD_HOOKS
        self._hooks = [state[kind] for kind in kinds if kind in state]
        self._registered = [*map(tuple, self._hooks)]  # each hook has a number of its own
        self._hooked = any(self._hooks)  # then the plan is made of the module as it is called, hooks included

    def found(self) -> str | None:
        """Return what changed, or None. This runs on every call."""
        if forward_ad._current_level >= 0 or peek_interpreter_stack() is not None:
            return "a transform of functions (vmap, jvp, grad) is active"
        if _len_torch_dispatch_stack():  # it would see other operators than the model's, or none
            return "a mode that watches or replaces operators is active"
        if modules._has_any_global_hook():  # a plan enters below the call that would run it
            return "a hook for all modules is registered"
        state = self._state
        if state is None:
            return None
        if getattr(self._original, "training", None) is not self._training:  # a torch.jit module's is not in its state
            return "the model changed between train() and eval() since the plan was applied"
        if (self._hooked or any(self._hooks)) and [*map(tuple, self._hooks)] != self._registered:
            return "a hook was registered or removed since the plan was applied"
        if state.get("forward") is not self._forward or type(self._original) is not self._kind:
            return "the model's forward or class was replaced since the plan was applied"
        return None
