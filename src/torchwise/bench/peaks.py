"""What this hardware can do at the most: a large copy and large matrix products, measured on the spot."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from torchwise.bench.job import Survey
from torchwise.measure import Clock, turns
from torchwise.records.benchmark import Peaks

COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}
"""Far beyond any cache."""
SIDE = {"cpu": 2048, "cuda": 8192}
DTYPES = {"cpu": ("float32", "bfloat16", "float64"), "cuda": ("float32", "bfloat16", "float16", "float64")}
SPEND_S = 1.0


def survey(job: Survey, stage: Callable[[str], None]) -> Peaks:
    """Measure bandwidth and matrix rates of the job's device, PyTorch's default settings in force."""
    device = job.job.workload.device
    turns.join(device)
    with turns.alone():
        stage("bandwidth")
        bandwidth = _bandwidth(device)
        stage("matrix products")
        return Peaks(bandwidth, {name: _rate(name, device) for name in DTYPES[device]})


def _bandwidth(device: str) -> float:
    source = torch.randn(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / _best(lambda: target.copy_(source), device)


def _rate(dtype: str, device: str) -> float:
    side = SIDE[device]
    left, right = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
    return float(2 * side**3 / _best(lambda: left @ right, device))


def _best(work: Callable[[], Any], device: str) -> float:
    """Return the fewest seconds that `work` took, over about a second: a peak is what was reached once."""
    clock = Clock(device)
    best = float("inf")
    end = time.perf_counter() + SPEND_S
    while time.perf_counter() < end or best == float("inf"):
        best = min(best, clock.once(work))
    return best
