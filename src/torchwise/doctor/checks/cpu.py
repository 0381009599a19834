"""Check the number of CPU threads against the CPUs, the load, and the frequency policy."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchwise.doctor.finding import Finding, ok, warn
from torchwise.doctor.system_info import SystemInfo
from torchwise.doctor.threads import read_cost
from torchwise.records.cores import describe_contention

BUSY = 0.5
"""Load, as a share of all CPUs, above which timings on the CPU are unreliable."""
SLOW_GOVERNORS = ("powersave", "conservative", "ondemand")


def check(facts: SystemInfo) -> Iterator[Finding]:
    """Judge the number of threads, their waiting for cores, the load and the frequency policy."""
    yield _threads(facts)
    yield _load(facts)
    yield from _cores(facts)
    if facts.governor in SLOW_GOVERNORS:
        yield warn(
            "CPU frequency",
            f"governor {facts.governor}: the clock changes during timings",
            "sudo cpupower frequency-set --governor performance, while tuning",
        )
    elif facts.governor:
        yield ok("CPU frequency", f"governor {facts.governor}")


def _threads(facts: SystemInfo) -> Finding:
    topic, setting = "CPU threads", facts.environ.get("OMP_NUM_THREADS")
    usable = facts.cpus if facts.quota is None else min(facts.cpus, math.ceil(facts.quota))
    fix = f"set OMP_NUM_THREADS={usable}"
    if setting is not None and not (setting.isdecimal() and int(setting) > 0):
        return warn(topic, f"OMP_NUM_THREADS is {setting!r}, but must be a whole number of at least 1", fix)
    probed = facts.probe.get("threads")
    threads = int(setting) if setting else int(probed.detail) if probed and not probed.failed else facts.cpus
    if threads > usable and usable < facts.cpus:
        limit = f"the container may use {facts.quota:g} of {facts.cpus} CPUs"
        return warn(topic, f"{limit}, but torch starts {threads} threads and is throttled", fix)
    if threads > usable:
        return warn(topic, f"{threads} threads compete for {usable} CPUs", fix)
    if setting and threads < usable:
        advice = "unset it, unless it is also set in production"
        return warn(topic, f"OMP_NUM_THREADS={setting}: the model uses {setting} of {usable} CPUs", advice)
    return ok(topic, f"{threads} on {usable} CPU{'s' * (usable > 1)}")


def _cores(facts: SystemInfo) -> Iterator[Finding]:
    """Report the slow-down of a small model if its threads wait for cores, or that the cores are free."""
    timed = facts.probe.get("cores")
    if timed is None or timed.failed:
        return
    cost = read_cost(timed.detail)
    found = describe_contention(cost.cores, cost.seconds, "a small model")
    if not cost.cores.is_contended:
        yield ok("CPU cores", found)
        return
    yield warn(
        "CPU cores",
        found,
        "set OMP_NUM_THREADS=1 for models with short calls, or run `torchwise tune`: it tries `threads` first, and "
        "a plan sets them only for its own calls",
    )


def _load(facts: SystemInfo) -> Finding:
    if facts.load is None:
        return ok("CPU load", "unknown on this system")
    found = f"{facts.load:.1f} processes run or wait on {facts.host_cpus} CPUs"
    if facts.load > BUSY * facts.host_cpus:
        return warn("CPU load", found, "stop other programs: CPU timings are unreliable while they run")
    return ok("CPU load", found)
