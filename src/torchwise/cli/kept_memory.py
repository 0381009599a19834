"""Let glibc keep memory that was freed, for this process and those that it starts."""

from __future__ import annotations

import ctypes
import os
import sys

from torchwise.errors import InputError

SETTINGS = {"MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1), "MALLOC_MMAP_MAX_": (-4, 0)}
"""glibc's settings: variables that a process reads at its start, each with its number for `mallopt`, and the
value. Freed memory is kept up to the most bytes that glibc takes, and none is mapped for one tensor alone. A threshold
for the latter would say the same, but glibc before 2.35 takes none above 32 MiB.
"""


def keep_freed_memory() -> None:
    """Have glibc keep freed memory, instead of returning it to the kernel, which fetches it anew on the next call.

    Settings that the user made by variables stay.

    Raises:
        InputError: this process has another C library, or glibc refuses.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        raise InputError("--keep-memory is given, but only glibc on Linux can keep freed memory: leave it out")
    for variable, (number, value) in SETTINGS.items():
        if variable in os.environ or (variable == "MALLOC_MMAP_MAX_" and "MALLOC_MMAP_THRESHOLD_" in os.environ):
            continue
        if not mallopt(number, value):
            raise InputError(f"--keep-memory is given, but glibc refuses {variable}={value}: leave it out")
        os.environ[variable] = str(value)  # for processes that it starts, and one that replaces it
