"""Apply a decided plan in a live program: it answers calls of verified signatures, and the original all others.

Its names are loaded on first use, as parts of it, such as the settings of components, need no torch.
"""

from typing import TYPE_CHECKING

from torchwise.former_packages import load_attributes

if TYPE_CHECKING:
    from torchwise.runtime.dispatch import Dispatcher
    from torchwise.runtime.fallback_reason import Fallback, FallbackReason
    from torchwise.runtime.module import OptimizedFunction, OptimizedModule
    from torchwise.runtime.served import unwrap
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

__getattr__ = load_attributes(
    __name__,
    {
        "Dispatcher": "dispatch",
        "Fallback": "fallback_reason",
        "FallbackReason": "fallback_reason",
        "OptimizedFunction": "module",
        "OptimizedModule": "module",
        "OptimizedStep": "step",
        "Statistics": "statistics",
        "stale_because": "staleness",
        "unwrap": "served",
    },
)
