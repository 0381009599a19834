"""Functions for programs that use results of `apply` or `optimize` in production: unwrap, freeze, metrics.

They are no methods, since a model may have methods of the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchwise.runtime import OptimizedFunction, OptimizedModule


def unwrap(optimized: Any) -> Any:
    """Return the original model of a result of `apply` or `optimize`, or any other object unchanged."""
    from torchwise import runtime

    return runtime.unwrap(optimized)


def freeze(optimized: OptimizedModule | OptimizedFunction) -> None:
    """Forbid further compilation and capture. The original model runs calls with input signatures that are new.

    Use it in a service whose calls must never wait for a compilation. First call the plan once with inputs of every
    expected signature. If the model or settings of PyTorch change so that the plan would be compiled or captured again,
    the original model also runs.

    Raises:
        InputError: `optimized` is no result of `apply` or `optimize`.
        UnsupportedError: this version of torch does not report compilations.
    """
    from torchwise.runtime.module import freezable

    freezable(optimized).freeze()


def unfreeze(optimized: OptimizedModule | OptimizedFunction) -> None:
    """Permit compilation and capture again until the next `freeze`, to warm up after a change.

    Raises:
        InputError: `optimized` is no result of `apply` or `optimize`.
    """
    from torchwise.runtime.module import freezable

    freezable(optimized).unfreeze()


def export_metrics(
    optimized: OptimizedModule | OptimizedFunction, name: str, registry: Any = None
) -> Callable[[], None]:
    """Export the number and the latency of the calls of `optimized` to Prometheus.

    Calls take no extra time, as each scrape reads the counts.

    Args:
        optimized: a result of `apply` or `optimize`.
        name: value of the label `model` of its metrics.
        registry: a `prometheus_client.CollectorRegistry`, by default the global one.

    Returns:
        A function that removes the metrics.

    Raises:
        InputError: `optimized` is no result of `apply` or `optimize`, or the name is already in use.
        UnsupportedError: prometheus-client is not installed. It comes with the extra `metrics`.
    """
    from torchwise.runtime import metrics

    return metrics.export_metrics(optimized, name, registry)
