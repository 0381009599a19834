"""Functions for a program that serves a result of `apply` or `optimize`: unwrapping, freezing, metrics.

These are functions and no methods, as a model may have a method of any name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchwise.runtime import OptimizedFunction, OptimizedModule


def unwrap(optimized: Any) -> Any:
    """Return the original behind a result of `apply` or `optimize`, or any other object as it is."""
    from torchwise import runtime

    return runtime.unwrap(optimized)


def freeze(optimized: OptimizedModule | OptimizedFunction) -> None:
    """Compile and capture nothing more. The original answers all calls that the plan has not answered by now.

    It is for a service that has called its plan once on inputs of every signature that will come, and must not stop for
    a new one. If the model or PyTorch's settings change so that the plan would be compiled or captured again, the
    original answers, too.

    Raises:
        InputError: it is nothing that Torchwise optimised.
        UnsupportedError: this torch does not say when it compiles.
    """
    from torchwise.runtime.module import freezable

    freezable(optimized).freeze()


def unfreeze(optimized: OptimizedModule | OptimizedFunction) -> None:
    """Let calls compile and capture again, until the next `freeze`, to warm up after a change.

    Raises:
        InputError: it is nothing that Torchwise optimised.
    """
    from torchwise.runtime.module import freezable

    freezable(optimized).unfreeze()


def export_metrics(
    optimized: OptimizedModule | OptimizedFunction, name: str, registry: Any = None
) -> Callable[[], None]:
    """Have Prometheus scrape the counts and the latency of the calls of `optimized`.

    It adds nothing to a call: counts are read at each scrape.

    Args:
        optimized: a result of `apply` or `optimize`.
        name: the label `model` of its metrics.
        registry: a `prometheus_client.CollectorRegistry`, by default the global one.

    Returns:
        A function that removes the metrics.

    Raises:
        InputError: it is nothing that Torchwise optimised, or the name is taken.
        UnsupportedError: prometheus-client is not installed. It comes with the extra `metrics`.
    """
    from torchwise.runtime import metrics

    return metrics.export_metrics(optimized, name, registry)
