"""Find changes since a plan was applied, in the model itself or around its calls, that keep the plan from answering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise._torch.dispatch import DISPATCH_MODES, is_transforming
from torchwise._torch.modules import HAS_GLOBAL_HOOK
from torchwise.compile.guards.code_guard import CodeGuard, code_of, is_same_method
from torchwise.compile.guards.dict_contents import MISSING, count_dict_writes, version
from torchwise.compile.guards.reachable_code import is_same_code
from torchwise.runtime.fallback_reason import Fallback, FallbackReason

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
CALLED = ("forward", "_call_impl")
"""Functions that a module's own attributes may replace."""
_count_dispatch_modes: Callable[[], int] = DISPATCH_MODES.get("a served plan")
_has_global_hook: Callable[[], bool] = HAS_GLOBAL_HOOK.get("a served plan")

REPLACED = Fallback(FallbackReason.CODE_REPLACED, "its forward or class")
COMPILED = Fallback(
    FallbackReason.COMPILE_CHANGED,
    "model.compile() was called since the plan was applied, and so PyTorch's compiled code answers",
)
UNCOMPILED = Fallback(
    FallbackReason.COMPILE_CHANGED, "the code of model.compile() was removed since the plan was applied"
)
TRANSFORM_ACTIVE = Fallback(FallbackReason.TRANSFORM_ACTIVE)
DISPATCH_MODE_ACTIVE = Fallback(FallbackReason.DISPATCH_MODE_ACTIVE)
GLOBAL_HOOK = Fallback(FallbackReason.GLOBAL_HOOK)
HOOKS_CHANGED = Fallback(FallbackReason.HOOKS_CHANGED)
TRAINING_MODE_CHANGED = Fallback(FallbackReason.TRAINING_MODE_CHANGED)


class CallGuard:
    """Checks the parts that a plan bypasses: the module's own call, its mode and hooks, and modes around all operators.

    It also checks the code that the module runs (`CodeGuard`). The rest of a module is checked by the code that made
    something of it (`compile.guards.module_guard`).
    """

    def __init__(self, original: Any, *, inference: bool) -> None:
        self._original, self._kind = original, type(original)
        self._state = vars(original) if isinstance(original, torch.nn.Module) else {}
        self._training = getattr(original, "training", None)
        self._is_scripted = isinstance(original, torch.jit.ScriptModule)  # whose mode is not in its state
        self._called = {name: self._state.get(name, MISSING) for name in CALLED}
        self._compiled = self._state.get("_compiled_call_impl")
        self._code = CodeGuard(original)
        self._take_code()
        self._found: Fallback | None = None
        kinds = HOOKS if inference else HOOKS + BACKWARD_HOOKS
        self._hooks = [self._state[kind] for kind in kinds if kind in self._state]
        self._registered = [*map(tuple, self._hooks)]  # each hook has a number of its own
        self._hooked = any(self._hooks)  # then the plan is made of the module as it is called, hooks included

    def _take_code(self) -> None:
        code = self._code
        self._functions, self._codes, self._defaults = code.functions, code.codes, code.defaults
        self._dicts = code.dicts  # the module's own state among them
        self._seen = count_dict_writes(self._dicts)

    def find_change(self) -> Fallback | None:
        """Return the change, or None. This runs on every call."""
        if is_transforming():
            return TRANSFORM_ACTIVE
        if _count_dispatch_modes():  # it would see other operators than the model's, or none
            return DISPATCH_MODE_ACTIVE
        if _has_global_hook():  # a plan enters below the call that would run it
            return GLOBAL_HOOK
        written = sum(map(version, self._dicts))
        if written != self._seen or type(self._original) is not self._kind or self._is_scripted:
            self._check_written(written)
        if self._found is not None:
            return self._found
        if [*map(code_of, self._functions)] != self._codes or (self._defaults and self._code.has_other_defaults()):
            rewritten = self._code.rewritten()
            if rewritten is not None:
                return Fallback(FallbackReason.CODE_REPLACED, rewritten)
        if (self._hooked or any(self._hooks)) and [*map(tuple, self._hooks)] != self._registered:
            return HOOKS_CHANGED
        return None

    def _check_written(self, written: int) -> None:
        """Examine everything that was written to."""
        dicts = self._dicts
        self._found = self._find_model_change()
        if self._dicts is dicts:
            self._seen = written

    def _find_model_change(self) -> Fallback | None:
        if getattr(self._original, "training", None) is not self._training:
            return TRAINING_MODE_CHANGED
        compiled = self._state.get("_compiled_call_impl")
        if compiled is not self._compiled:
            return COMPILED if compiled is not None else UNCOMPILED
        for name, before in self._called.items():
            now = self._state.get(name, MISSING)
            if now is not before and not is_same_method(self._original, name, now, before):
                return REPLACED
        replaced = self._code.rebound()
        if replaced is not None:
            return Fallback(FallbackReason.CODE_REPLACED, replaced)
        return None if type(self._original) is self._kind else self._change_class()

    def _change_class(self) -> Fallback | None:
        """Accept another class of the same code for the model's own, for example after its file was loaded again."""
        if self._code.rewritten() or not is_same_code(type(self._original), self._kind):
            return REPLACED
        self._kind = type(self._original)
        self._code.take_snapshot()
        self._take_code()
        return None
