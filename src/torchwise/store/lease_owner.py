"""The owner of a running trial, and whether its process is alive."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

HEARTBEAT_LIMIT_S = 600.0
"""Seconds without a heartbeat after which a process on another host counts as dead."""

_START_TOLERANCE_S = 1.0  # psutil derives the start from the boot time, which the kernel corrects by fractions


@cache
def this_host() -> str:
    """Return this machine's name, with a suffix that distinguishes it from other machines of the same name.

    The suffix is a hash of the machine's id, as machine-id(5) forbids publishing the id itself.
    """
    try:
        machine = Path("/etc/machine-id").read_bytes().strip()
    except OSError:
        machine = b""
    mark = hashlib.sha256(b"torchwise " + machine).hexdigest()[:8]
    return f"{platform.node()}/{mark}" if machine else platform.node()


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """A process, distinguished from a later one with the same process id.

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
        """Whether the process is alive.

        On this host, the process table decides. The process is dead if it does not exist, is a zombie, or has another
        start time. On another host, it is dead if its last heartbeat was over `HEARTBEAT_LIMIT_S` ago.

        Args:
            silent_s: seconds since its last heartbeat, by the store's clock.
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
        except psutil.AccessDenied:  # it exists and belongs to another user, so its start time is unknown
            return True
