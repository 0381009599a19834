"""The callback with which Dynamo compiles, extended by the settings of a plan.

Dynamo calls back only when none of its compiled code fits a call, in the thread of the call. So the settings for
compiling a plan are applied there, at no cost to other calls. Recompilations are noticed there, too: the callback finds
the values that vary when code is compiled again for a known kind of call. A number that varies becomes an input of the
code, as `torch.compile` does by itself for floats. Sizes stay constant in a plan with static shapes.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchwise._torch import dynamo
from torchwise.compile.cuda_graphs.compile_freeze import is_in_frozen_call
from torchwise.compile.guards.guard_bypass import GuardBypass
from torchwise.compile.guards.varying_values import Noted, VaryingKind, VaryingValue, find_varied, note
from torchwise.compile.recompiles import Recompiles
from torchwise.errors import UnsupportedError

WHO = "compiling by a plan"


class CompileCallback:
    """Compiles by a plan, in place of Dynamo's callback, which it calls.

    `bypass` records the guards of compiled code, and `settings` hold while compiling. They are told
    `is_whole`: whether the frame is the callable's own, and not a part of it that Dynamo compiles separately.

    Attributes:
        recompiles: counts the recompiles.
        calls: the number of calls through Dynamo so far.
        expected: the thread whose call is the first of its kind, so that compiling is expected.
    """

    def __init__(
        self,
        inner: Any,
        bypass: GuardBypass,
        settings: Callable[..., AbstractContextManager[None]],
        *,
        is_dynamic: bool,
    ) -> None:
        # Dynamo knows the backend by this attribute.
        setattr(self, dynamo.INNER_BACKEND, getattr(inner, dynamo.INNER_BACKEND, None))
        self._inner, self._bypass = inner, bypass
        self._settings, self._is_dynamic = settings, is_dynamic
        self._noted: defaultdict[types.CodeType, list[Noted]] = defaultdict(list)
        self._numbers: dict[str, bool] = {}  # inputs by now, and whether they are integers
        self._is_buffer_varying = False
        self._history: Any = None
        self._counted = -1  # the call that was counted last
        self.recompiles = Recompiles()
        self.calls = 0
        self.expected: int | None = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of Dynamo's own callback, which Dynamo reads."""
        return getattr(self._inner, name)

    def __call__(self, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, skip: int = 0) -> Any:
        """Compile a frame."""
        code = frame.f_code
        if cache_entry is None:  # or Dynamo was reset
            self._noted[code].clear()
        is_expected = self.expected == threading.get_ident()
        # Code that no call has reached before is not compiled again, but it has its price.
        if self._noted[code] or (not is_expected and self.recompiles.price.is_too_high):
            self._compile_again(frame, cache_entry)
        self._bypass.begin()
        start = time.perf_counter()
        with self._settings(is_whole=self._bypass.is_of(code)), self._numbers_as_inputs():
            result = self._inner(frame, cache_entry, hooks, frame_state, skip=skip + 1)
        if (guarded := getattr(result, "guarded_code", None)) is not None:
            if not is_expected:
                self.recompiles.price.pay(time.perf_counter() - start)
            self._noted[code].append(note(self._bypass.values()))
            self._bypass.note_code(code, guarded.code, frame.f_locals)
        return result

    def _compile_again(self, frame: Any, cache_entry: Any) -> None:
        """Count a recompilation, and make inputs of the numbers that vary.

        A call is counted once, as one change may have all of its graphs compiled again. It is not counted if it is the
        first of its kind.
        """
        if is_in_frozen_call():  # the call is refused, so it does not count
            return
        is_whole = self._bypass.is_of(frame.f_code)
        is_new = self.expected == threading.get_ident() and not (self._is_dynamic and is_whole)
        varied = self._find_varied(frame)
        if not is_new and self._counted != self.calls:
            others = [one for one in varied if one.name not in self._numbers] or varied
            self.recompiles.again(others or [_find_failed_guard(cache_entry, frame)], at_start=is_whole)
            self._counted = self.calls
        self._numbers |= {one.name: one.is_integer for one in varied if one.kind is VaryingKind.NUMBER}
        self._is_buffer_varying |= any(one.kind is VaryingKind.TENSOR and "._buffers[" in one.name for one in varied)

    def _find_varied(self, frame: Any) -> list[VaryingValue]:
        """Compare with the earlier compilation that has the fewest differences, and among those the fewest tensors."""
        scope = {"L": frame.f_locals, "G": frame.f_globals}
        by_compilation = [find_varied(noted, scope, self._bypass.own) for noted in self._noted[frame.f_code]]
        return min(
            by_compilation,
            key=lambda varied: (len(varied), sum(one.kind is VaryingKind.TENSOR for one in varied)),
            default=[VaryingValue("", "the code that a call reaches", VaryingKind.BRANCH)],
        )

    @contextlib.contextmanager
    def _numbers_as_inputs(self) -> Iterator[None]:
        integers = [name for name, is_integer in self._numbers.items() if is_integer and not set(name) & set(", :")]
        with contextlib.ExitStack() as stack:
            if integers:
                config: Any = torch.compiler.config
                sources = ",".join(filter(None, (config.dynamic_sources, *integers)))
                stack.enter_context(config.patch(dynamic_sources=sources))
            if self._is_dynamic and self._is_buffer_varying:  # Dynamo treats the shapes of buffers as constants
                stack.enter_context(dynamo.patch_config(force_parameter_static_shapes=False))
            if not self._is_dynamic:
                with contextlib.suppress(UnsupportedError):  # floats stay constants in such a version of torch
                    stack.enter_context(self._own_history())
            yield

    @contextlib.contextmanager
    def _own_history(self) -> Iterator[None]:
        """Have Dynamo make inputs of floats that had other values before, but never of sizes.

        Dynamo recognizes them by a history that all compiled functions share. It has an entry for each number and each
        tensor that code was compiled for. The callback holds Dynamo's lock.
        """
        dynamo.HISTORY.get(WHO)
        if self._history is None:
            self._history = defaultdict(dynamo.HISTORY_OF_CODE.get(WHO))
        for state in self._history.values():
            entries = state.automatic_dynamic
            for name in [name for name, entry in entries.items() if isinstance(entry.size, tuple)]:
                del entries[name]
        dynamos_own = dynamo.swap_history(self._history)
        try:
            with dynamo.patch_config(automatic_dynamic_shapes=True):
                yield
        finally:
            dynamo.swap_history(dynamos_own)


def compile_with(
    call: Callable[..., Any],
    backend: Any,
    bypass: GuardBypass,
    settings: Callable[..., AbstractContextManager[None]],
    *,
    is_dynamic: bool,
) -> tuple[Callable[..., Any], CompileCallback]:
    """Return `call` compiled as by `torch.compile`, and the callback that compiles it."""
    context = dynamo.OPTIMIZE.get(WHO)(backend, guard_filter_fn=bypass.guard_filter)
    catching = getattr(context, "callback", None)  # None if Dynamo is disabled, and nothing is compiled
    bypass.backend = innermost(catching)
    callback = _callback_class()(getattr(catching, dynamo.INNER_BACKEND, None), bypass, settings, is_dynamic=is_dynamic)
    if catching is not None:
        setattr(catching, dynamo.INNER_BACKEND, callback)
    return context(call), callback


@functools.cache
def _callback_class() -> type[CompileCallback]:
    """Return the class with a call whose code names Dynamo's own file.

    Dynamo searches the stack past that file for the caller, such as a function that is disabled non-recursively.
    """
    file = dynamo.CONVERT_FRAME.get(WHO).__code__.co_filename
    call = CompileCallback.__call__
    code = call.__code__.replace(co_filename=file)
    relocated = types.FunctionType(code, call.__globals__, call.__name__, call.__defaults__, call.__closure__)
    return type(CompileCallback.__name__, (CompileCallback,), {"__call__": relocated})


def innermost(callback: Any) -> Any:
    """Return the backend behind Dynamo's layers."""
    while (inner := getattr(callback, dynamo.INNER_BACKEND, None)) is not None:
        callback = inner
    return callback


def _find_failed_guard(cache_entry: Any, frame: Any) -> VaryingValue:
    """Return the condition of the first failing guard, as PyTorch writes it."""
    try:
        parts = cache_entry.guard_manager.check_verbose(frame.f_locals).verbose_code_parts
        text = parts[0].partition("  # ")[0].strip()
    except Exception:  # a private API, and nothing depends on its answer
        text = "unknown"
    return VaryingValue("", f"the condition of PyTorch's guard `{text}`", VaryingKind.STATE)
