"""Peak memory of one call, above the memory held before it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


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
