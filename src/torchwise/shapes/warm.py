"""Everything compiled and captured before the first request, and nothing on one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchwise.realize.capture.direct import SETTLING_CALLS
from torchwise.shapes.module import buckets_of

logger = logging.getLogger("torchwise")

CALLS = 2
"""Calls per bucket: one that compiles, and one that shows the way is clear."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """A bucket that is ready.

    Attributes:
        bucket: its size.
        number: which it is, counted from 1.
        total: how many there are.
        seconds: what it took.
    """

    bucket: int
    number: int
    total: int
    seconds: float

    def __str__(self) -> str:
        return f"bucket {self.bucket} is ready after {self.seconds:.1f} s ({self.number} of {self.total})"


def warm_up(fast: Any, progress: Callable[[Warmed], object] | None = None, *, freeze: bool = True) -> None:
    """Call the plan of every bucket until it is compiled and captured, the largest first, then freeze.

    The largest goes first, as its memory serves the smaller ones. After the freeze no call compiles or captures: what
    would need it is answered by the original and counted. PyTorch compiles for `torch.inference_mode()` apart: where
    requests are answered under it, call this under it, too.

    Args:
        fast: of `bucketed` or `apply_buckets`.
        progress: hears of every bucket; such as `print`. None logs it.
        freeze: whether to freeze.

    Raises:
        InputError: it pads nothing.
    """
    buckets = buckets_of(fast)
    sizes = sorted(buckets.proof.buckets, reverse=True)
    captures = any(decision.plan.capture != "none" for decision in buckets.decisions)
    for number, bucket in enumerate(sizes, 1):
        start = time.perf_counter()
        buckets.warm(bucket, CALLS + SETTLING_CALLS if captures else CALLS)
        warmed = Warmed(bucket, number, len(sizes), time.perf_counter() - start)
        if progress is None:
            logger.info("torchwise: %s", warmed)
        else:
            progress(warmed)
    if freeze:
        buckets.freeze()
