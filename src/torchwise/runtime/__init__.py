"""Apply a decided plan in a live program: it answers calls of verified signatures, and the original all others."""

from torchwise.runtime.dispatch import Dispatcher
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.module import OptimizedFunction, OptimizedModule, unwrap
from torchwise.runtime.staleness import stale_because
from torchwise.runtime.statistics import Statistics
from torchwise.runtime.step import OptimizedStep

__all__ = [
    "Dispatcher",
    "Fallback",
    "FallbackReason",
    "OptimizedFunction",
    "OptimizedModule",
    "OptimizedStep",
    "Statistics",
    "stale_because",
    "unwrap",
]
