"""The lanes of a search: how many plans it tries at once, and the CPU cores of each.

On a GPU, compilers work on the CPU's cores, and whoever measures has the device alone (`measure/device_lock.py`). So
several plans may be tried at once, if each worker has cores of its own: no compiler then slows the host's side of
another's measurement. One core is left to the search itself. On a CPU the cores are the device, and there is one lane.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from torchwise import environment
from torchwise.measure import device_lock
from torchwise.measure.device_lock import OWN_CORES
from torchwise.records import Inspection
from torchwise.records import format as show
from torchwise.study.request import Request

MAX_LANES = 4
"""Maximum number of lanes, unless the user gives another: whoever measures is alone, and the others wait for it."""
MIN_CORES = 4
"""Usable cores from which a search has several lanes."""
CORES_OF_A_LANE = 2
"""Cores from which on a further lane is opened: compilers and timed calls take one each."""
TRIAL_MEMORY = 4
"""GPU memory of a trial as a multiple of the inspection's: the model, its float64 reference of twice the size, and the
candidate's own copy. A trial that needs more is repeated alone."""
CONTEXT_BYTES = 2**30
"""GPU memory of a process besides its tensors: kernels, libraries and their workspaces."""
HOST_BYTES = 8 * 2**30
"""Memory of the host that a lane should have. Libraries alone take some 3 GiB of it."""
SHARED_MODE = "Default"
"""The compute mode of a GPU that several processes may use, as `nvidia-smi` names it."""
RANKS = "LOCAL_WORLD_SIZE"
"""Variable of `torchrun` with the number of the program's processes on this machine."""
TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Lane:
    """The place of one worker at a time.

    Attributes:
        cores: its own CPU cores, or none if it may use all of this process's.
    """

    number: int = 0
    cores: tuple[int, ...] = ()


@contextlib.contextmanager
def open_lanes(request: Request, inspection: Inspection, *, is_local: bool) -> Iterator[tuple[tuple[Lane, ...], str]]:
    """Yield the lanes of a search, at least one, and why there are no more than these.

    Args:
        is_local: whether the workers run on this machine.
    """
    count, why = count_lanes(request, inspection, is_local=is_local)
    with contextlib.ExitStack() as held:
        if count > 1 and not held.enter_context(device_lock.hold_cores()):
            count, why = 1, "another search has divided the cores among its workers"
        yield divide_cores(environment.usable_cpus(), count) if count > 1 else (Lane(),), why


def count_lanes(request: Request, inspection: Inspection, *, is_local: bool) -> tuple[int, str]:
    """Return how many plans may be tried at once, and why not more."""
    count, why = MAX_LANES if request.workers is None else request.workers, "no more were asked for"
    bounds = _list_bounds(request, inspection, is_local=is_local)
    while count > 1 and (found := next(bounds, None)):
        if found[0] < count:
            count, why = max(found[0], 1), found[1]
    return count, why


def _list_bounds(request: Request, inspection: Inspection, *, is_local: bool) -> Iterator[tuple[int, str]]:
    """Yield limits of the number of lanes with their reasons, those that take longest to find out last."""
    if request.workload.device == "cpu":
        yield 1, "on a CPU the cores are the device"
    if not is_local:
        yield 1, "a device of a cluster has one worker"
    if request.wait:
        yield 1, "a search that shares the device with others, for whom it waits, has no cores of its own"
    if OWN_CORES in os.environ:
        yield 1, f"{OWN_CORES} is set, so another process shares the device"
    if os.environ.get(RANKS, "1") not in ("", "1"):
        yield 1, f"{RANKS} is {os.environ[RANKS]}, so other processes of this program run on the cores"
    cores = count_cores()
    yield _count_by_cores(cores), f"{show.pluralize(cores, 'core')} may be used"
    free = psutil.virtual_memory().available
    yield free // HOST_BYTES, f"{free / 2**30:.1f} GiB of memory are free"
    free_device = _read_free_device_memory()
    if free_device is None or inspection.device_memory is None:
        yield 1, "the GPU takes one process at a time, or its free memory or that of the model is unknown"
    else:
        need = TRIAL_MEMORY * inspection.device_memory + CONTEXT_BYTES
        yield free_device // need, f"{free_device / 2**30:.1f} GiB of the GPU's memory are free"


def count_cores() -> int:
    """Return the number of CPU cores that may be used all the time, also under a quota, or 0 if none can be chosen."""
    return math.floor(min(len(environment.usable_cpus()), environment.cpu_quota() or math.inf))


def _count_by_cores(cores: int) -> int:
    return max((cores - 1) // CORES_OF_A_LANE, 2) if cores >= MIN_CORES else 1


def _read_free_device_memory() -> int | None:
    """Return the bytes that are free on the GPU for several processes, as the driver says, or None."""
    rows = environment.query_gpu("memory.free,compute_mode")
    free, mode = rows[0] if rows and len(rows[0]) == 2 else ("", "")
    return int(free) * 2**20 if free.isdigit() and mode == SHARED_MODE else None


def divide_cores(usable: Iterable[int], count: int) -> tuple[Lane, ...]:
    """Return `count` lanes with equally many cores each, so that all trials are alike. One core at least is left over.

    Under a quota no more cores are used than it allows, or the control group would be stopped in a measurement.
    """
    cores = sorted(usable, key=lambda core: (_find_first_thread(core), core))
    each = (count_cores() - 1) // count
    return tuple(Lane(lane, tuple(cores[lane * each : (lane + 1) * each])) for lane in range(count))


def _find_first_thread(core: int) -> int:
    """Return the first of the logical CPUs that are threads of the same core, which one lane should have."""
    siblings = environment.read_text(TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list")
    first = re.match(r"\d+", siblings or "")
    return int(first[0]) if first else core
