"""A server that a test starts on a free port of this machine, and kills, and the end of other processes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command: Callable[[int], list[str]], seconds: float = 30) -> Iterator[tuple[int, int]]:
    """Run the command that `command` returns for a port, until the end.

    Once it answers, yield the port and process id.
    """
    port = free_port()
    with subprocess.Popen(command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + seconds
            while not answers(port):
                assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
                assert time.monotonic() < deadline, f"{process.args!r} does not answer"
                time.sleep(0.05)
            yield port, process.pid
        finally:
            process.kill()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for_end(pid: int, seconds: float = 30) -> None:
    """Wait until a process is no more than an entry that nobody has read, however busy the machine is."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, f"process {pid} lives on"
            time.sleep(0.05)
