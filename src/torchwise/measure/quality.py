"""The caveats of a measurement: it was noisy, it drifted, the machine was busy, the clocks fell.

Who has the CPUs during timing is observed: this process, other programs, or nobody because a quota is spent.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch

from torchwise.environment import (
    CGROUP_OWN,
    CGROUP_ROOT,
    available_cpus,
    cpu_quota,
    query_gpu,
    read_text,
    read_throttled_s,
    usable_cpus,
)
from torchwise.measure import device_lock
from torchwise.records import Measurement
from torchwise.records.measurement import CoreUse, Throttling

NOISY = 0.25
"""Relative interquartile range of eager's own samples above which the machine counts as noisy."""
DRIFTED = 0.10
"""Relative change of eager from the first third of the rounds to the last above which it counts as drifting."""
BUSY = 0.5
"""Share of the other cores' time used by other processes above which the machine counts as busy."""
TOO_BUSY = 10.0
"""Ratio between times of the same calls from which on a note gives it instead of a percentage, with its meaning."""

REASONS = {
    "hw_slowdown": Throttling.HARDWARE,
    "hw_thermal_slowdown": Throttling.HARDWARE_THERMAL,
    "hw_power_brake_slowdown": Throttling.POWER_BRAKE,
    "sw_thermal_slowdown": Throttling.THERMAL,
    "sw_power_cap": Throttling.POWER_CAP,
}
"""The names in NVIDIA's driver. A busy GPU usually runs at its power cap, which is no reason to doubt a ratio."""


class Watch:
    """Notes the machine's state at its creation, and judges a measurement by the changes since."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._cores = CoreWatch()
        self._gpu = [_read_gpu()] if device == "cuda" else []

    def read_cores(self) -> CoreUse:
        """Return how the CPUs were shared since its creation."""
        return self._cores.read_use(torch.get_num_threads())

    def judge(self, measurement: Measurement, target: float) -> Measurement:
        """Return `measurement` with the machine's state during it, and with its caveats."""
        cores = self.read_cores()
        states = [state for state in (*self._gpu, _read_gpu()) if state] if self._gpu else []
        clocks = sorted(state[0] for state in states)
        throttling = tuple(why for why in Throttling if any(why in reasons for _, reasons in states))
        result = replace(measurement, sm_clock_mhz=tuple(clocks[:1] + clocks[-1:]), throttling=throttling, cores=cores)
        gpu = _gpu(result) if self._device == "cuda" else []
        notes = (*_load(cores), *gpu, *_spread(result))  # causes first
        return replace(result, notes=notes, width_note=_describe_width(result, target))


def _describe_width(measurement: Measurement, target: float) -> str:
    """Say that the speed-up's interval is wider than `target`, a relative half-width, or return ""."""
    speedup = measurement.speedup
    if measurement.pruned or speedup.half_width <= target:
        return ""
    # Beyond 100 % the interval is far from symmetrical, and its ends say more.
    is_wide = speedup.half_width > 1
    width = f"[{speedup.low:.3g}, {speedup.high:.3g}]" if is_wide else f"±{speedup.half_width:.1%}"
    return (
        f"the interval is {width} after {len(measurement.candidate_s)} rounds, wider than the ±{target:.0%} asked for"
    )


def _load(cores: CoreUse | None) -> list[str]:
    if cores is None or cores.others is None or cores.others <= BUSY * max(cores.cpus - 1, 1):
        return []
    return [f"other processes used {cores.others:.1f} of {cores.cpus} cores meanwhile"]


def _spread(measurement: Measurement) -> list[str]:
    samples = np.asarray(measurement.baseline_s)
    middle = float(np.median(samples))
    quartiles = np.quantile(samples, (0.25, 0.75))
    found = []
    if (spread := float(quartiles[1] - quartiles[0]) / middle) > TOO_BUSY:
        found.append(
            f"a quarter of eager's samples took over {quartiles[1] / quartiles[0]:,.0f} times as long as another "
            "quarter: the machine was too busy to time"
        )
    elif spread > NOISY:
        found.append(f"eager's own time varies by {spread:.0%} between its quartiles: the machine is noisy")
    third = len(samples) // 3
    if third >= 3:
        first, last = np.median(samples[:third]), np.median(samples[-third:])
        if (longer := max(first, last) / min(first, last)) > TOO_BUSY:
            when = "last rounds as in the first" if last > first else "first rounds as in the last"
            found.append(f"eager took {longer:,.0f} times as long in the {when}: the machine was too busy to time")
        elif abs(drift := last / first - 1) > DRIFTED:
            found.append(f"eager drifted by {drift:+.0%} from the first rounds to the last")
    return found


def _read_gpu() -> tuple[int, set[Throttling]] | None:
    """Return the clock of the multiprocessors in MHz and why it is limited, or None if the driver does not say."""
    rows = query_gpu(",".join(("clocks.sm", *(f"clocks_event_reasons.{name}" for name in REASONS))))
    if not rows or not rows[0][0].isdigit():
        return None
    clock, *cells = rows[0]
    return int(clock), {why for why, cell in zip(REASONS.values(), cells, strict=False) if cell == "Active"}


def _gpu(measurement: Measurement) -> list[str]:
    found = []
    if slowed := [why for why in measurement.throttling if why is not Throttling.POWER_CAP]:
        least, most = measurement.sm_clock_mhz
        found.append(f"the GPU was throttling ({', '.join(slowed)}): its clock was {least} to {most} MHz")
    others = {int(row[0]) for row in query_gpu("pid", "compute-apps") if row[0].isdigit()}
    if foreign := others - _list_family():
        found.append(f"{len(foreign)} other process{'es' * (len(foreign) > 1)} used the GPU meanwhile")
    return found


def _list_family() -> set[int]:
    """Return the ids of this process, of those above it, and of workers beside it, which wait while it measures."""
    own = psutil.Process()
    parents = own.parents()
    beside = parents[0].children(recursive=True) if parents and device_lock.has_joined() else []
    return {process.pid for process in (own, *parents, *beside)}


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
    """Counts from its creation. See `CoreUse`."""

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
