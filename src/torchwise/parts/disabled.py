"""One environment variable that turns every part back into plain code, without a change to the program."""

from __future__ import annotations

import os

VARIABLE = "TORCHWISE_DISABLE"
OFF = ("", "0", "false", "no", "off")


def is_disabled() -> bool:
    """Whether `TORCHWISE_DISABLE` is set now; any value but "", 0, false, no and off counts, since plain is safe."""
    return (value := os.environ.get(VARIABLE)) is not None and value.strip().lower() not in OFF
