"""Report every now and then that this process lives, for processes on other hosts, which cannot look."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torchwise.store import LeaseOwner, Storage

HEARTBEAT_S = 30.0


@contextmanager
def keep_heartbeat(storage: Storage, owner: LeaseOwner) -> Iterator[None]:
    """Send the owner's heartbeats from a thread while the block runs."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_S):
            storage.heartbeat(owner)

    thread = threading.Thread(target=beat, daemon=True, name="torchwise-heartbeat")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
