"""Read the CPU time that the control groups of this process allow, and the time for which they stopped it.

Standard library only. Version 2 keeps both in the folder of the group and of every group above it. Version 1 does so
below the folder of its controller `cpu`. In a container the files of its own group often lie at the root instead. If a
file is missing or has unexpected contents, nothing is known from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
CONTROLLERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")
"""Names of the folder that version 1 keeps the controller in."""


def cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return the number of CPUs' worth of time that the control groups of this process allow, or None if unlimited."""
    limits = [_read_limit(group) for group in _list_groups(root, own)]
    least = min(limits, default=math.inf)
    return None if least == math.inf else least


def read_throttled_s(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return the seconds for which groups of this process were stopped as a quota was spent, or None if unknown.

    The seconds of all groups are added up, so that an increase in any of them shows.
    """
    found = [seconds for group in _list_groups(root, own) if (seconds := _read_throttled(group)) is not None]
    return sum(found) if found else None


def _list_groups(root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders that may hold limits of this process: roots first, then its groups and those above them."""
    controller = next((root / name for name in CONTROLLERS if (root / name).is_dir()), root)
    bases = {"": root, "cpu": controller}
    yield from dict.fromkeys(bases.values())
    for line in (read_text(own) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = bases.get("cpu" if "cpu" in controllers.split(",") else controllers)
        if base is not None:
            group = base / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if base in folder.parents)


def _read_limit(group: Path) -> float:
    """Return the CPUs' worth of time that one group allows, or infinity if it sets no limit."""
    quota, period = [*(read_text(group / "cpu.max") or "max").split(), "100000"][:2]
    version_1 = (read_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return min(_divide(quota, period), _divide(*(text or "" for text in version_1)))


def _divide(quota: str, period: str) -> float:
    try:
        share = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):  # "max", or no such file: no limit
        return math.inf
    return share if share > 0 else math.inf  # version 1 says -1 for no limit


def _read_throttled(group: Path) -> float | None:
    """Return the seconds for which one group was stopped. Version 2 counts microseconds, version 1 nanoseconds."""
    for line in (read_text(group / "cpu.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        unit = {"throttled_usec": 1e-6, "throttled_time": 1e-9}.get(name)
        if unit is not None and value.strip().isdecimal():
            return int(value) * unit
    return None


def read_text(path: Path) -> str | None:
    """Return the text of a system file without the space around it, or None if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):  # no such file, no permission, or no text
        return None
