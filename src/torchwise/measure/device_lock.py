"""Locks on a device: a process that measures is alone on it, the others wait, and several may compile at once.

Two searches at once on one GPU would time each other's kernels, as would two benchmarks that share it to save time. So
every worker shares the device from when it loads a model, and has it alone while it measures. That is a lock for
readers and writers. It is fair, as a process that waits for the device alone keeps a door shut. Sources: Courtois,
Heymans & Parnas, CACM 14(10), 1971, and the turnstile of Downey, The Little Book of Semaphores, 4.2.3. The locks are
`flock`s, which end with their process.

A compiler works on the CPU's cores, and on a GPU only in moments, when it times kernels to choose among them. A process
may have cores of its own, if its starter says so by TORCHWISE_OWN_CORES=1. A worker that compiles then steps aside
(`aside`), so that another may measure, and shares the GPU again for those moments (`share_temporarily`). Without the
variable it keeps its share: on common cores it would slow the host's side of a measurement. It also keeps it on the
CPU, where the cores are the device. A search gives its workers such cores (`study/lanes.py`), one search at a time.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nobody waits
    fcntl = None  # type: ignore[assignment]

OWN_CORES = "TORCHWISE_OWN_CORES"
"""Variable that is 1 if no other participating process runs on the cores of this one."""


class DeviceLock:
    """This process's lock on one device.

    Args:
        device: the device's name, the same in every process. See `name_of`.
        report_wait: called with True before this process waits for others, and with False when it has the lock.
        folder: the folder of the locks, the same for all participants.

    Attributes:
        waited_s: seconds that this process has waited for others.
    """

    def __init__(self, device: str, report_wait: Callable[[bool], None], folder: Path | None = None) -> None:
        self._door, self._room = (_open_lock(f"{device}.{part}", folder) for part in ("door", "room"))
        self._report_wait = report_wait
        self._has_reported = False
        self.waited_s = 0.0
        self._asides, self._moments = 0, 0
        # A lock belongs to the process: its threads must neither drop each other's, nor wait at the door for one that
        # waits for them to leave.
        self._counting = threading.Lock()

    def share(self) -> None:
        """Share the device with others, from now on, while none of them measures."""
        self.leave()  # A process that waits at the door must have left the room: the one inside waits for that.
        with self._wait():
            self._lock(self._door, fcntl.LOCK_EX)
            self._lock(self._room, fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)

    def leave(self) -> None:
        """Stop working on the device."""
        fcntl.flock(self._room, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have the device alone, and share it again afterwards."""
        self.leave()
        with self._wait():
            self._lock(self._door, fcntl.LOCK_EX)
            self._lock(self._room, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_SH)
            fcntl.flock(self._door, fcntl.LOCK_UN)

    def aside(self) -> AbstractContextManager[None]:
        """Work elsewhere for a while, and share the device again afterwards."""
        return self._counted(asides=1)

    def share_temporarily(self) -> AbstractContextManager[None]:
        """Share the device for a while, even if this process has stepped aside."""
        return self._counted(moments=1)

    @contextlib.contextmanager
    def _counted(self, asides: int = 0, moments: int = 0) -> Iterator[None]:
        self._count(asides, moments)
        try:
            yield
        finally:
            self._count(-asides, -moments)

    def _count(self, asides: int, moments: int) -> None:
        with self._counting:
            before = self._is_away()
            self._asides, self._moments = self._asides + asides, self._moments + moments
            if self._is_away() and not before:
                self.leave()
            elif before and not self._is_away():
                self.share()

    def _is_away(self) -> bool:
        return self._asides > 0 and self._moments == 0

    @contextlib.contextmanager
    def _wait(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.waited_s += time.monotonic() - start
        if self._has_reported:
            self._has_reported = False
            self._report_wait(False)

    def _lock(self, file: int, kind: int) -> None:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if not self._has_reported:
                self._has_reported = True
                self._report_wait(True)
            fcntl.flock(file, kind)


def _open_lock(name: str, folder: Path | None = None) -> int:
    """Open the file of a lock, by default in the folder that all processes of this user share."""
    folder = folder or Path(tempfile.gettempdir(), f"torchwise-turns-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def hold_cores() -> Iterator[bool]:
    """Yield whether this process may give its workers cores of their own meanwhile, as one of a user's at a time may.

    Two that divide the same cores would have compilers of the one on cores on which the other measures.
    """
    with contextlib.ExitStack() as opened:
        is_held = False
        if fcntl is not None:
            with contextlib.suppress(OSError):  # another process holds it, or there is no folder for locks
                file = _open_lock("cores")
                opened.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_held = True
        yield is_held


def name_of(device: str) -> str:
    """Return the name of `device`, "cpu" or "cuda", that all processes on this machine use for it."""
    if device == "cpu":
        return device
    import torch

    # CUDA_VISIBLE_DEVICES numbers the devices differently in each process.
    return f"cuda-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


_joined: DeviceLock | None = None
_report_wait: Callable[[bool], None] | None = None
_may_step_aside = False


def configure_lock(report_wait: Callable[[bool], None] | None) -> None:
    """Have this process use the lock from when it joins a device, or with None use no lock, as before.

    Only workers use it, on one device each, and their end releases it. A program that measures parts of itself must
    not. Its timed call may wait for another of its processes, which would wait for the lock. `report_wait` is called
    when this process begins (True) and ceases (False) to wait.
    """
    global _joined, _report_wait, _may_step_aside
    _joined, _report_wait, _may_step_aside = None, report_wait, False


def join(device: str) -> None:
    """Share `device`, "cpu" or "cuda", from now on with every other participating process, if this one participates."""
    global _joined, _may_step_aside
    if _joined is None and _report_wait is not None and fcntl is not None:
        with contextlib.suppress(OSError):  # no folder for locks: processes may then disturb each other
            _joined = DeviceLock(name_of(device), _report_wait)
            _joined.share()
            _may_step_aside = device != "cpu" and os.environ.get(OWN_CORES) == "1"


def leave() -> None:
    """Leave the joined device to others until this process joins it again. It has no effect if none was joined."""
    global _joined
    if _joined is not None:
        _joined.leave()
        _joined = None


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Have the joined device alone. It has no effect if none was joined."""
    if _joined is None:
        yield
        return
    with _joined.alone():
        yield


def has_joined() -> bool:
    """Say whether this process shares a device with others by the lock."""
    return _joined is not None


def may_step_aside() -> bool:
    """Say whether `aside` has an effect: this process shares a GPU, and has cores of its own."""
    return _may_step_aside


def aside() -> AbstractContextManager[None]:
    """Leave the joined device to others for a while, and share it again afterwards. See `may_step_aside`."""
    return contextlib.nullcontext() if _joined is None or not _may_step_aside else _joined.aside()


def share_temporarily() -> AbstractContextManager[None]:
    """Share the joined device for a while, also within `aside`. It has no effect if none was joined."""
    return contextlib.nullcontext() if _joined is None else _joined.share_temporarily()


def total_wait_s() -> float:
    """Return the seconds that this process has waited for others since it joined a device."""
    return 0.0 if _joined is None else _joined.waited_s
