"""Find out whether a call prints or logs: its output is lost once the call is a replay of kernels."""

from __future__ import annotations

import builtins
import logging
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

MIN_LEVEL = logging.INFO
"""Below this a line is for debugging, and usually switched off."""
NOT_THE_MODELS = "torch"
"""PyTorch's loggers report how a call runs, and not the model's own messages."""


def prints(call: Callable[[], Any]) -> bool:
    """Make the call once, and return whether it prints or logs in this thread. Writing to a stream does not count.

    Loggers count even if they are disabled here, as they may be enabled in the program.
    """
    thread, heard = threading.get_ident(), False
    shown, is_enabled = builtins.print, logging.Logger.isEnabledFor

    def show(*args: Any, **kwargs: Any) -> None:
        nonlocal heard
        heard |= threading.get_ident() == thread
        shown(*args, **kwargs)

    def would_log(logger: logging.Logger, level: int) -> bool:
        nonlocal heard
        is_own = logger.name.partition(".")[0] != NOT_THE_MODELS and threading.get_ident() == thread
        heard |= is_own and level >= MIN_LEVEL
        return is_enabled(logger, level)

    with mock.patch.object(builtins, "print", show), mock.patch.object(logging.Logger, "isEnabledFor", would_log):
        call()
    return heard
