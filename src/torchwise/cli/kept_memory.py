"""Let glibc keep memory that was freed, for this process and those that it starts."""

from __future__ import annotations

import ctypes
import os
import sys

from torchwise.errors import InputError

KEPT = 2**31 - 1
"""Bytes up to which freed memory is kept, and memory is not mapped for one tensor alone: the most that glibc takes."""
SETTINGS = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""glibc's settings: the variables that a process reads at its start, and the numbers of `mallopt` while it runs."""


def keep_freed_memory() -> None:
    """Have glibc keep freed memory, instead of returning it to the kernel, which fetches it anew on the next call.

    Settings that the user made by variables stay.

    Raises:
        InputError: this process has another C library, or glibc refuses.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        raise InputError("--keep-memory is given, but only glibc on Linux can keep freed memory: leave it out")
    for variable, number in SETTINGS.items():
        if variable in os.environ:
            continue
        if not mallopt(number, KEPT):
            raise InputError(f"--keep-memory is given, but glibc refuses {variable}={KEPT}: leave it out")
        os.environ[variable] = str(KEPT)  # for processes that it starts, and one that replaces it
