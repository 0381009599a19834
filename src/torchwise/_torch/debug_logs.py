"""`TORCHWISE_DEBUG`: PyTorch's own messages on one subject, in this process and in every worker."""

from __future__ import annotations

import functools
import inspect
import logging
import os

from torchwise._torch.private_name import PrivateName
from torchwise.errors import InputError, did_you_mean

VARIABLE = "TORCHWISE_DEBUG"
SET_LOGS = PrivateName("torch._logging", "set_logs")
LOGS = {
    "breaks": "graph_breaks",
    "recompiles": "recompiles",
    "autotune": "autotuning",
    "kernels": "kernel_code",
}
"""The log of PyTorch by the name of a preset, as `TORCH_LOGS` and `torch._logging.set_logs` call it."""

logger = logging.getLogger("torchwise")


def read_presets() -> tuple[str, ...]:
    """Return the presets that the environment names.

    Raises:
        InputError: one is unknown.
    """
    names = tuple(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())
    for name in names:
        if name not in LOGS:
            raise InputError(f"{VARIABLE} has {name!r}, but must list {', '.join(LOGS)}{did_you_mean(name, LOGS)}")
    return tuple(dict.fromkeys(names))


def show_logs() -> None:
    """Have PyTorch show what the environment asks for, or do nothing if it asks for nothing.

    Raises:
        InputError: a preset is unknown.
    """
    if presets := read_presets():
        _set_logs(presets)


@functools.cache  # they are set once, so that a program may change them later
def _set_logs(presets: tuple[str, ...]) -> None:
    set_logs = SET_LOGS.get(VARIABLE)
    known = inspect.signature(set_logs).parameters
    chosen = {LOGS[name]: True for name in presets if LOGS[name] in known}
    if missing := [name for name in presets if LOGS[name] not in known]:
        logger.warning("torchwise: this version of torch has no log for %s=%s", VARIABLE, ",".join(missing))
    if os.environ.get("TORCH_LOGS"):
        logger.warning("torchwise: TORCH_LOGS is set, so PyTorch does not take %s", VARIABLE)
        return
    set_logs(**chosen)
