"""Peak memory of one call, above the memory held before it, and caches that are cold when a call is timed.

A call that is timed over and over finds its inputs and weights in a cache: a GPU's L2, or a CPU's last-level cache. A
program that does other work between two calls may find them in memory. Writing a buffer larger than the cache recreates
that situation. PyTorch's own `InductorBenchmarker` and Triton's `do_bench` do so between calls, and NVIDIA's nvbench
before each "cold" measurement.

The buffer has twice the size of the cache, as no cache is certain to replace its oldest lines. That factor and the size
assumed for an unknown cache are those of `clearcache.c` in numactl.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from torchwise.environment import usable_cpus
from torchwise.errors import UnsupportedError


def peak_memory(call: Callable[[], Any], device: str) -> int | None:
    """Run `call` once, and return the bytes at its peak above those held before.

    On a GPU this is PyTorch's allocator's own figure. On Linux CPUs it is the rise of the resident set's high-water
    mark (`VmHWM`, reset through `/proc/self/clear_refs`). The C library is first asked to return its unused memory, as
    reused memory does not show. On other systems it is None.
    """
    gc.collect()
    return _cuda_peak(call) if device == "cuda" else _linux_peak(call)


def measure_memory_use(device: str) -> int | None:
    """Return the bytes of GPU memory that this process holds, or None on the CPU.

    They are the tensors and the private pools of captured CUDA graphs. Nothing else uses a graph's memory between
    replays, and the peak of a replay does not show it. On the CPU, a compiler's own memory would count.
    """
    if device != "cuda":
        return None

    gc.collect()
    torch.cuda.synchronize()
    shared = (0, 0)
    segments = [s for s in torch.cuda.memory_snapshot() if tuple(s.get("segment_pool_id", shared)) != shared]
    kept = sum(segment["total_size"] - segment["allocated_size"] for segment in segments)
    return int(torch.cuda.memory_allocated() + kept)


def measure_reserved_memory() -> int | None:
    """Return the most bytes of GPU memory that this process has reserved for tensors, or None if it uses no GPU.

    `peak_memory` forgets memory that was returned to the driver before, as PyTorch does only if memory runs out.
    """
    return torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else None


def _cuda_peak(call: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return max(torch.cuda.max_memory_allocated() - before, 0)


def _linux_peak(call: Callable[[], Any]) -> int | None:
    with contextlib.suppress(OSError, AttributeError):  # a C library without malloc_trim, such as musl
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        call()
        return max(_status("VmHWM") - before, 0)
    except (OSError, KeyError, ValueError):  # another system, or a container that hides /proc
        call()
        return None


def _status(field: str) -> int:
    """Read a field of /proc/self/status, which is in kB, and return it in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)


TIMES = 2
"""Size of the buffer as a multiple of the cache."""
UNKNOWN_BYTES = 64 << 20
"""Assumed size of a CPU's last-level cache if the system does not report it."""
MAX_BUFFER_BYTES = 1 << 30
"""Largest size of the buffer, which two cores write in 0.1 s.

A virtual machine may report its host's whole cache, although it has a part of it.
"""
CPUS = Path("/sys/devices/system/cpu")


def make_eviction(device: str) -> Callable[[], None]:
    """Return a callable that evicts all other data from a device's caches. On a GPU it is only enqueued.

    Raises:
        UnsupportedError: too little memory is free for the buffer.
    """
    size = min(TIMES * (_l2_bytes() if device == "cuda" else _last_level_bytes()), MAX_BUFFER_BYTES)
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    if 2 * size > free:  # the timed call needs memory as well
        raise UnsupportedError(
            f"emptying the caches takes a buffer of {size >> 20} MiB, but {free >> 20} MiB of memory are free, "
            "of which at most half may be taken"
        )
    buffer = torch.empty(size, dtype=torch.uint8, device=device)

    def evict() -> None:
        buffer.zero_()  # on a CPU all threads of an operator write, and so each empties its own caches

    return evict


def _l2_bytes() -> int:
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


def _last_level_bytes() -> int:
    """Return the bytes of the last-level caches of the CPUs that this process may use, each counted once."""
    try:
        found = dict(_last_level(CPUS / f"cpu{cpu}" / "cache") for cpu in usable_cpus())
    except (OSError, ValueError):  # no such files, as in some sandboxes
        found = {}
    return sum(found.values()) or UNKNOWN_BYTES


def _last_level(caches: Path) -> tuple[str, int]:
    """Return which CPUs share the last-level cache of one of them, and its size."""
    last = max(caches.glob("index*"), key=lambda index: int(_read(index / "level")))
    return _read(last / "shared_cpu_list"), int(_read(last / "size").removesuffix("K")) << 10


def _read(file: Path) -> str:
    return file.read_text(encoding="ascii").strip()
