"""Profile eager's time roughly, and measure the peaks of this hardware: a large copy and a large matrix product.

The profile gives the share that a choice can act on, and so its largest possible saving.

PyTorch's settings stay as they are. The caller takes the device's turn (`torchwise.measure.device_lock`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.measure import device_lock
from torchwise.measure.clock import Clock

OF_MATRICES = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "addmv", "mv", "mkldnn_rnn_layer")
ATTENTION = ("scaled_dot_product", "flash_attention", "efficient_attention", "cudnn_attention")
CONV = ("convolution", "conv1d", "conv2d", "conv3d")


@dataclass(frozen=True, slots=True)
class Profile:
    """The distribution of one call's time.

    Attributes:
        shares: share of operator time in "gemm" (matrix products, convolutions and fused attention), "conv" and
            "attention", each 0 to 1.
        busy_s: seconds per call in which a GPU kernel runs, or None on the CPU.
    """

    shares: dict[str, float]
    busy_s: float | None

    def list_shares(self, call_s: float) -> dict[str, float]:
        """Return the shares by kind, with "launch" on a GPU: the share of `call_s` without a kernel."""
        if self.busy_s is None:
            return dict(self.shares)
        return {**self.shares, "launch": min(max(1 - self.busy_s / call_s, 0.0), 1.0)}


CALLS = 2


def profile_of(call: Callable[[], Any], device: str) -> Profile:
    """Run `call` under PyTorch's profiler.

    Shares are of self time inside operators (GPU time on CUDA), so Python's own time is in neither. The result is empty
    if the profiler cannot be used or sees nothing (a compiled call has no operators).
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    try:
        with device_lock.alone(), profile(activities=activities) as profiler:
            for _ in range(CALLS):
                call()
            if device == "cuda":
                torch.cuda.synchronize()
        events = profiler.key_averages()
    except Exception:  # another profiler is attached, the tracing library is missing, or the call fails under it
        return Profile({}, None)
    return Profile(_shares(events, device), _busy_s(events) if device == "cuda" else None)


def _busy_s(events: Any) -> float:
    """Sum the kernels' own time: operators carry it a second time, as that of the kernels they launched."""
    kernels = [event for event in events if event.device_type.name == "CUDA"]
    return float(sum(event.self_device_time_total for event in kernels)) / 1e6 / CALLS


def _shares(events: Any, device: str) -> dict[str, float]:
    totals = {"gemm": 0.0, "conv": 0.0, "attention": 0.0, "all": 0.0}
    for event in events:
        if not event.key.startswith("aten::"):
            continue
        time_us = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        totals["all"] += time_us
        if kind := _kind(event.key.removeprefix("aten::")):
            totals[kind] += time_us
    if totals["all"] <= 0:
        return {}
    gemm, conv, attention = (totals[kind] / totals["all"] for kind in ("gemm", "conv", "attention"))
    return {"gemm": gemm + conv + attention, "conv": conv, "attention": attention}


def _kind(name: str) -> str | None:
    name = name.strip("_")
    if any(word in name for word in CONV) or "mkldnn_convolution" in name:
        return "conv"
    if any(word in name for word in ATTENTION):
        return "attention"
    return "gemm" if name in OF_MATRICES else None


COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}
"""Far beyond any cache."""
SIDE = {"cpu": 2048, "cuda": 8192}
SPEND_S = 1.0


def bandwidth(device: str, spend_s: float = SPEND_S) -> float:
    """Return the bytes read plus written per second by a large copy, which is made at least once."""
    source = torch.ones(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source), device, spend_s)


def matrix_rate(dtype: torch.dtype, device: str, spend_s: float = SPEND_S) -> float:
    """Return the floating-point operations per second of a large matrix product, which is made at least once."""
    side = SIDE[device]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return float(2 * side**3 / _best(lambda: left @ right, device, spend_s))


def _best(work: Callable[[], Any], device: str, spend_s: float) -> float:
    """Return the fewest seconds that `work` took: a peak is the best that was reached once."""
    clock, end, best = Clock(device), time.perf_counter() + spend_s, float("inf")
    while time.perf_counter() < end or best == float("inf"):
        best = min(best, clock.once(work))
    return best
