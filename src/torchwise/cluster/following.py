"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def follow(parent: int) -> None:
    """Be interrupted when `parent`, which started this process, ends: as by Ctrl-C, so that what is done is kept."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGINT)
    if os.getppid() != parent:  # it ended before this could be said
        os.kill(os.getpid(), signal.SIGINT)
