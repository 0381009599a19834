"""Add the dtype of autocast to PyTorch's cache key of compiled code, which lacks it before 2.13.

A graph under float16 was answered by code compiled for it under bfloat16, in this process or from an earlier process's
cache on disk. PyTorch 2.13 adds the dtype itself (`AOTAutogradCacheDetails.autocast_state`). This does the same before
2.13.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from torchwise._torch.aot_autograd import CACHE_KEY
from torchwise.errors import UnsupportedError

NOTED = "autocast_state"


@functools.cache
def add_autocast_to_key() -> None:
    """Add the dtype of each active autocast to the key. Keys without autocast stay the same."""
    with contextlib.suppress(UnsupportedError):  # a version without such keys
        details = CACHE_KEY.get("a key of compiled code")
        if NOTED not in details.__init__.__code__.co_names:
            _note_in(details)


def _note_in(details: Any) -> None:
    make = details.__init__

    def init_with_note(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        devices = filter(torch.is_autocast_enabled, ("cpu", "cuda"))
        if noted := {device: torch.get_autocast_dtype(device) for device in devices}:
            setattr(self, NOTED, noted)

    details.__init__ = init_with_note
