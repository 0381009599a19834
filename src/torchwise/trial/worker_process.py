"""The process of a worker in its parent: its end, with all that it started, and its memory."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Protocol

import psutil


class WorkerProcess(Protocol):
    """The process of a worker, as multiprocessing has it."""

    @property
    def pid(self) -> int | None:
        """Its process id."""
        ...

    @property
    def exitcode(self) -> int | None:
        """The code of its exit, or the signal's number below 0, or None while it runs."""
        ...

    def is_alive(self) -> bool:
        """Whether it still runs."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


def end_process(process: WorkerProcess) -> None:
    """Kill the worker's whole group, as a compiler that it started must not outlive it."""
    if process.pid is None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # Before setsid the worker shares its server's group, which must live on.
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    if process.is_alive():
        process.kill()
    process.join(10)


def measure_resident(pid: int | None) -> int:
    """Sum the resident memory of a process and its children, in bytes, or 0 once it is gone."""
    if pid is None:
        return 0
    total = 0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total
