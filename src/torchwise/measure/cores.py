"""Observe who has the CPUs during timing: this process, other programs, or nobody because a quota is spent."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from torchwise.environment import (
    CGROUP_OWN,
    CGROUP_ROOT,
    available_cpus,
    cpu_quota,
    read_text,
    read_throttled_s,
    usable_cpus,
)
from torchwise.records.measurement import CoreUse

try:
    import resource
except ImportError:  # Windows does not count involuntary switches
    resource = None  # type: ignore[assignment]

MIN_S = 0.2
"""Seconds below which the use by other programs is unknown: the system counts their time in steps of 10 ms a CPU."""
PROC = Path("/proc")
WORKS = ("user", "nice", "system", "irq", "softirq", "steal")
"""Fields of a CPU's time that it spends on somebody. Another virtual machine took the time in "steal"."""


@dataclass(frozen=True, slots=True)
class _Counters:
    """The system's counters so far, in seconds, or None if it does not report them."""

    wall: float
    own: float  # of all threads of this process
    busy: float | None  # of the CPUs that it may use, by any process
    waited: float | None
    switches: int | None
    pressure: float | None
    throttled: float | None


class CoreWatch:
    """Counts from its creation. See `CoreUse`.

    Args:
        proc: the folder with the system's counters.
        groups: the folder of control groups, and the file that names those of this process.
    """

    def __init__(self, proc: Path = PROC, groups: tuple[Path, Path] = (CGROUP_ROOT, CGROUP_OWN)) -> None:
        self._proc, self._groups = proc, groups
        self._before = self._count()

    def read_use(self, threads: int) -> CoreUse:
        """Return how the CPUs were shared since, for a process whose operators use this many threads."""
        before, now = self._before, self._count()
        wall = max(now.wall - before.wall, 1e-6)
        busy = _increase_rate(before.busy, now.busy, 1.0) if wall >= MIN_S else None
        return CoreUse(
            available_cpus(),
            threads,
            others=None if busy is None else max(busy - (now.own - before.own), 0.0) / wall,
            waited=_share(before.waited, now.waited, wall),
            preempted=_increase_rate(before.switches, now.switches, wall),
            pressure=_share(before.pressure, now.pressure, wall),
            quota=cpu_quota(*self._groups),
            throttled=_share(before.throttled, now.throttled, wall),
        )

    def _count(self) -> _Counters:
        return _Counters(
            time.perf_counter(),
            time.process_time(),
            _read_busy(),
            _read_waited(self._proc),
            resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource else None,
            _read_pressure(self._proc),
            read_throttled_s(*self._groups),
        )


def _increase_rate(before: float | None, now: float | None, wall: float) -> float | None:
    return None if before is None or now is None else max(now - before, 0.0) / wall


def _share(before: float | None, now: float | None, wall: float) -> float | None:
    spent = _increase_rate(before, now, wall)
    return None if spent is None else min(spent, 1.0)


def _read_busy() -> float | None:
    """Return the seconds that the CPUs available to this process have worked, for any process."""
    try:
        times = psutil.cpu_times(percpu=True)
        usable = usable_cpus() or range(len(times))
        return float(sum(getattr(times[cpu], work, 0.0) for cpu in usable for work in WORKS))
    except (OSError, RuntimeError, LookupError, psutil.Error):  # no such counters, or fewer than there are CPUs
        return None


def _read_waited(proc: Path) -> float | None:
    """Return the seconds that this thread was ready to run without a CPU: the second figure of its `schedstat`."""
    text = read_text(proc / "self" / "task" / str(threading.get_native_id()) / "schedstat")
    figures = (text or "").split()
    return int(figures[1]) / 1e9 if len(figures) > 1 and figures[1].isdecimal() else None


def _read_pressure(proc: Path) -> float | None:
    """Return the seconds in which some process waited for a CPU: "some avg10=0.00 … total=<microseconds>"."""
    for line in (read_text(proc / "pressure" / "cpu") or "").splitlines():
        total = line.rpartition("total=")[2]
        if line.startswith("some ") and total.isdecimal():
            return int(total) / 1e6
    return None
