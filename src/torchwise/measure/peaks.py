"""Measure the peaks of this hardware: a large copy and a large matrix product.

PyTorch's settings stay as they are. The caller takes the device's turn (`torchwise.measure.device_lock`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from torchwise.measure.clock import Clock

COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}
"""Far beyond any cache."""
SIDE = {"cpu": 2048, "cuda": 8192}
SPEND_S = 1.0


def bandwidth(device: str, spend_s: float = SPEND_S) -> float:
    """Return the bytes read plus written per second by a large copy.

    Args:
        device: "cpu" or "cuda".
        spend_s: seconds for it, although one copy is always made.
    """
    source = torch.ones(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source), device, spend_s)


def matrix_rate(dtype: torch.dtype, device: str, spend_s: float = SPEND_S) -> float:
    """Return the floating-point operations per second of a large matrix product.

    Args:
        dtype: of its numbers.
        device: "cpu" or "cuda".
        spend_s: seconds for it, although one product is always made.
    """
    side = SIDE[device]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return float(2 * side**3 / _best(lambda: left @ right, device, spend_s))


def _best(work: Callable[[], Any], device: str, spend_s: float) -> float:
    """Return the fewest seconds that `work` took: a peak is the best that was reached once."""
    clock, end, best = Clock(device), time.perf_counter() + spend_s, float("inf")
    while time.perf_counter() < end or best == float("inf"):
        best = min(best, clock.once(work))
    return best
