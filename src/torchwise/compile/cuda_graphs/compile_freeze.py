"""Prevent compilations and captures in the calls of a frozen plan, at any depth.

Dynamo compiles again after a failed guard, and a changed module is captured again. A request would wait for seconds.
Dynamo reports when it begins to compile, in the thread that compiles, and captures here do the same. Within a frozen
plan's call both are refused before they begin. Other compilations in the same process continue.

Source: PyTorch's start callbacks, which report compilations to distributed programs.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Any

from torchwise._torch.dynamo import CALLBACK_HANDLER, CALLBACK_TRIGGER
from torchwise._torch.private_name import check
from torchwise.errors import UnsupportedError

WHO = "freezing a plan"


class FrozenError(UnsupportedError):
    """A call of a frozen plan would need a compilation or a capture."""


class _State(enum.Enum):
    FREE = enum.auto()
    HELD = enum.auto()
    REFUSED = enum.auto()


class _Here(threading.local):
    """This thread's state: outside a frozen plan's call, inside one, or inside one that refused a compilation."""

    state = _State.FREE


_HERE = _Here()
_captures = 0
"""CUDA graphs that were recorded in this process: by Torchwise, and since a first freeze by PyTorch's own modes."""


def forbid_compile(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` for a frozen plan: it compiles and captures nothing.

    Raises:
        UnsupportedError: this torch does not report when it compiles.
        FrozenError (on call): the call would need a compilation or a capture.
    """
    check(WHO, (CALLBACK_HANDLER, CALLBACK_TRIGGER))
    callbacks: list[Callable[[Any], None]] = CALLBACK_HANDLER.get(WHO).start_callbacks
    here = _HERE

    def call_frozen(*args: Any, **kwargs: Any) -> Any:
        if _refuse_compiling not in callbacks:  # the first time, and after Dynamo was reset
            callbacks.append(_refuse_compiling)
        before, here.state = here.state, _State.HELD
        try:
            return call(*args, **kwargs)
        except Exception as error:  # Dynamo wraps the error in errors of its own
            if here.state is _State.REFUSED and not isinstance(error, FrozenError):
                raise FrozenError("the plan is frozen, but this call needs a new compilation") from error
            raise
        finally:
            here.state = before

    return call_frozen


def is_in_frozen_call() -> bool:
    """Whether this thread is in the call of a frozen plan."""
    return _HERE.state is not _State.FREE


def count_captured_graphs() -> int:
    """Return the number of CUDA graphs recorded in this process (see `count_compiled_graphs` for compiled graphs)."""
    return _captures


def count_capture() -> None:
    """Count one more captured graph."""
    global _captures
    _captures += 1


def _refuse_compiling(event: Any) -> None:
    if event.callback_trigger is CALLBACK_TRIGGER.get(WHO).CUDAGRAPH_RECORDING:
        count_capture()  # by a mode of torch.compile, which has already begun
    elif is_in_frozen_call():
        _HERE.state = _State.REFUSED
        raise FrozenError("the plan is frozen, but this call needs a new compilation")
