"""The owner of a running trial, and whether its process still lives."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

HEARTBEAT_LIMIT_S = 600.0
"""A process on another host counts as dead when it has not been heard of for this long."""

_START_TOLERANCE_S = 1.0  # psutil derives the start from the boot time, which the kernel corrects by fractions


@cache
def this_host() -> str:
    """Return this machine's name, with an addition that tells it from another of that name sharing the store.

    The machine's own id is for the machine alone (machine-id(5)), and so is stored as a hash.
    """
    try:
        machine = Path("/etc/machine-id").read_bytes().strip()
    except OSError:
        machine = b""
    mark = hashlib.sha256(b"torchwise " + machine).hexdigest()[:8]
    return f"{platform.node()}/{mark}" if machine else platform.node()


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """A process, distinguished from a later one that was given the same number.

    Attributes:
        host: the machine, named by `this_host`.
        pid: the process id.
        started: when the process started, in seconds since the epoch.
    """

    host: str
    pid: int
    started: float

    @classmethod
    def current(cls) -> LeaseOwner:
        """Return this process."""
        return cls(this_host(), os.getpid(), psutil.Process().create_time())

    def is_alive(self, silent_s: float) -> bool:
        """Whether the process still runs.

        On this host the process table says so: no such process, a zombie, or another start time means dead. On another
        host it is dead if its last heartbeat is at least `silent_s` old, by the store's clock, and that is long.
        """
        if self.host != this_host():
            return silent_s <= HEARTBEAT_LIMIT_S
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return abs(process.create_time() - self.started) <= _START_TOLERANCE_S
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:  # it exists, and belongs to another user: more cannot be known
            return True
