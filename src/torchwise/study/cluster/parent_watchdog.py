"""End a process together with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def follow(parent: int) -> None:
    """Interrupt this process when `parent`, which started it, ends.

    The signal is that of Ctrl-C, so that finished work is saved.
    """
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGINT)
    if os.getppid() != parent:  # the parent ended before the call above
        os.kill(os.getpid(), signal.SIGINT)
