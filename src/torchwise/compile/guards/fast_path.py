"""A direct call of compiled code, while nothing that it depends on has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch.dispatch import FUNCTION_MODES, list_function_modes
from torchwise._torch.dynamo import make_settings_check
from torchwise.compile.recompiles import Pace

Call = Callable[..., Any]
MAX_STATES = 4
"""Maximum number of kept bypasses for each signature: one for each state of the module and of PyTorch's settings."""


@dataclass(frozen=True, slots=True)
class FastPath:
    """A direct call of compiled code, with checks that nothing changed since it was found."""

    call_unguarded: Call
    settings: Callable[[], bool]
    fastpath: bool
    modes: list[Any]
    unchanged: Callable[[], bool]

    def holds(self) -> bool:
        """Whether it may be used now."""
        is_set = self.settings() and torch.backends.mha.get_fastpath_enabled() is self.fastpath
        return is_set and self.unchanged() and list_function_modes() == self.modes


Finish = Callable[[tuple[Any, ...], Mapping[str, Any]], FastPath | None]
"""Finds the bypass for an answered call, or None if there is none."""


def make_fast_path(call_unguarded: Call, unchanged: Callable[[], bool] | None) -> FastPath:
    """Return a fast path to `call_unguarded` that is valid for PyTorch's present settings and modes."""
    modes = list_function_modes()  # such as the mode of `torch.device(...)` as a context, or `torch.set_default_device`
    fastpath = torch.backends.mha.get_fastpath_enabled()
    return FastPath(call_unguarded, make_settings_check(), fastpath, modes, unchanged or _always)


def fast_path(steady: Call, path: FastPath, prepare: Callable[[tuple[Any, ...], Mapping[str, Any]], Finish]) -> Call:
    """Return a callable that uses the bypass while PyTorch's settings and the module are unchanged, or else `steady`.

    After a change a new bypass is found after a call of `steady`. Bypasses for the last few states are kept, as a
    program may switch between states. With frequent changes, only a share of the time is spent on the search (`Pace`).
    """
    stacked, fastpath_now = FUNCTION_MODES.get(), torch.backends.mha.get_fastpath_enabled
    pace = Pace()
    current = _unpack(path)
    known = [path]  # the current one is the first

    def call(*args: Any, **kwargs: Any) -> Any:
        call_unguarded, settings, fastpath, count, unchanged, modes = current
        if not settings() or fastpath_now() is not fastpath:
            return call_after_change(*args, **kwargs)
        if not unchanged() or stacked() != count or (count and list_function_modes() != modes):
            return call_after_change(*args, **kwargs)
        return call_unguarded(*args, **kwargs)

    def call_after_change(*args: Any, **kwargs: Any) -> Any:
        for other in known[1:]:
            if other.holds():
                take(other)
                return other.call_unguarded(*args, **kwargs)
        if not pace.is_due():
            return steady(*args, **kwargs)
        find = prepare(args, kwargs)
        answer = steady(*args, **kwargs)
        with pace:
            try:
                found = find(args, kwargs)
            except Exception:  # the call is answered, with or without this error
                found = None
        if found is not None:
            take(found)
        return answer

    def take(one: FastPath) -> None:
        nonlocal current, known
        known = [one, *(other for other in known if other is not one)][:MAX_STATES]
        current = _unpack(one)

    return call


def _unpack(path: FastPath) -> tuple[Any, ...]:
    return path.call_unguarded, path.settings, path.fastpath, len(path.modes), path.unchanged, path.modes


def _always() -> bool:
    return True
