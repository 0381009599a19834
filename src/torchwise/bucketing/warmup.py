"""Compile and capture everything before the first request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchwise.bucketing.module import buckets_of
from torchwise.compile.cuda_graphs.in_place_replay import SETTLING_CALLS

logger = logging.getLogger("torchwise")

CALLS = 2
"""Calls per bucket: one that compiles, and one that shows that the plan then answers."""


@dataclass(frozen=True, slots=True)
class WarmedBucket:
    """A bucket after its warmup.

    Attributes:
        bucket: its size.
        number: its number, counted from 1.
        total: number of buckets.
        seconds: duration of the warmup.
    """

    bucket: int
    number: int
    total: int
    seconds: float

    def __str__(self) -> str:
        return f"bucket {self.bucket} is ready after {self.seconds:.1f} s ({self.number} of {self.total})"


def warm_up(fast: Any, progress: Callable[[WarmedBucket], object] | None = None, *, freeze: bool = True) -> None:
    """Call the plan of every bucket until it is compiled and captured, then freeze.

    The largest bucket goes first, as smaller ones use its memory. After the freeze no call compiles or captures: the
    original answers calls that would need it, and they are counted. PyTorch compiles separately for
    `torch.inference_mode()`. If requests run under it, call this under it, too.

    Args:
        fast: the wrapper from `bucketed` or `apply_buckets`.
        progress: callback for each bucket, such as `print`. None logs it.
        freeze: whether to freeze.

    Raises:
        InputError: `fast` does not pad.
    """
    buckets = buckets_of(fast)
    sizes = sorted(buckets.verified.buckets, reverse=True)
    captures = any(decision.plan.capture != "none" for decision in buckets.decisions)
    for number, bucket in enumerate(sizes, 1):
        start = time.perf_counter()
        buckets.warm(bucket, CALLS + SETTLING_CALLS if captures else CALLS)
        warmed = WarmedBucket(bucket, number, len(sizes), time.perf_counter() - start)
        if progress is None:
            logger.info("torchwise: %s", warmed)
        else:
            progress(warmed)
    if freeze:
        buckets.freeze()
