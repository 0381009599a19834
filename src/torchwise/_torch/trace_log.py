"""The structured trace that PyTorch writes about each compilation."""

from __future__ import annotations

import logging

from torchwise._torch.private_name import PrivateName

TRACE_LOG = PrivateName("torch._logging._internal", "trace_log")
TRACE_SECONDS = PrivateName("torch._logging._internal", "structured_logging_overhead")


def get_logger() -> logging.Logger:
    """Return the logger of the trace.

    Raises:
        UnsupportedError: this version has none.
    """
    logger: logging.Logger = TRACE_LOG.get("watching the compiler")
    return logger


def get_seconds() -> dict[str, float]:
    """Return the seconds that the trace has taken so far in this process, by compilation, such as "0/1".

    Raises:
        UnsupportedError: this version does not count them.
    """
    seconds: dict[str, float] = TRACE_SECONDS.get("watching the compiler")
    return {key.replace("_", "/"): value for key, value in seconds.copy().items()}
