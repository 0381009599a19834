"""Private names of torch, without a promise of stability, that the diagnosis needs. They are looked up only here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

WHO = "watching the compiler"


def trace_logger() -> logging.Logger:
    """Return the logger of PyTorch's structured trace.

    Raises:
        UnsupportedError: this version has no such name.
    """
    logger: logging.Logger = _resolve_name(_TRACE_LOG)
    return logger


def cudagraph_skips() -> int:
    """Return how often Inductor skipped a requested CUDA graph in this process.

    Raises:
        UnsupportedError: this version has no such name.
    """
    counters: Mapping[str, Mapping[str, int]] = _resolve_name(_COUNTERS)
    return counters["inductor"]["cudagraph_skips"] if "cudagraph_skips" in counters.get("inductor", {}) else 0


def trace_seconds() -> dict[str, float]:
    """Return the seconds that PyTorch's trace has taken so far in this process, by compilation, such as "0/1".

    Raises:
        UnsupportedError: this version has no such name.
    """
    seconds: dict[str, float] = _resolve_name(_TRACE_SECONDS)
    return {key.replace("_", "/"): value for key, value in seconds.copy().items()}


def forget_what_varied() -> None:
    """Have PyTorch forget the sizes and numbers that varied: the next compilation makes none of them dynamic.

    Raises:
        UnsupportedError: this version has no such name.
    """
    _resolve_name(_CODE_STATE)()


def _resolve_name(name: tuple[str, str]) -> Any:
    from torchwise.compile import private  # here, as `torchwise.watch` is imported where there may be no torch

    return private.look_up(WHO, name)


_TRACE_LOG = ("torch._logging._internal", "trace_log")
_COUNTERS = ("torch._dynamo.utils", "counters")
_TRACE_SECONDS = ("torch._logging._internal", "structured_logging_overhead")
_CODE_STATE = ("torch._dynamo.pgo", "reset_code_state")
NAMES = (_TRACE_LOG, _COUNTERS, _TRACE_SECONDS, _CODE_STATE)
"""Every private name used."""
