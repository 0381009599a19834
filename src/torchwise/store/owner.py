"""Who is running a trial, and whether that process still lives."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass

import psutil

HEARTBEAT_LIMIT_S = 600.0
"""A process on another host counts as dead when it has not been heard of for this long."""

_START_TOLERANCE_S = 1.0  # psutil derives the start from the boot time, which the kernel corrects by fractions


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told apart from a later one that was given the same number.

    Attributes:
        host: the machine's name.
        pid: the process id.
        started: when the process started, in seconds since the epoch.
    """

    host: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> Owner:
        """Return this process."""
        return cls(platform.node(), os.getpid(), psutil.Process().create_time())

    def is_alive(self, heartbeat: float) -> bool:
        """Whether the process still runs.

        On this host the process table says so: no such process, a zombie, or another start time is dead. On
        another host `heartbeat` says so, by this host's clock: hosts that share a store keep their clocks in step.
        """
        if self.host != platform.node():
            return time.time() - heartbeat <= HEARTBEAT_LIMIT_S
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return abs(process.create_time() - self.started) <= _START_TOLERANCE_S
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:  # it exists, and belongs to another user: more cannot be known
            return True
