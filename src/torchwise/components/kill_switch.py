"""The environment variable `TORCHWISE_DISABLE`, which makes every component run its original code."""

from __future__ import annotations

import os

VARIABLE = "TORCHWISE_DISABLE"
OFF = ("", "0", "false", "no", "off")


def is_disabled() -> bool:
    """Return whether `TORCHWISE_DISABLE` is set now.

    Any value but "", 0, false, no and off counts, as plain code is safe.
    """
    return (value := os.environ.get(VARIABLE)) is not None and value.strip().lower() not in OFF
