"""What a program does with what `apply` or `optimize` returned: the original behind it, freezing, metrics.

These are functions and no methods, as a model may have a method of any name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchwise.runtime import OptimizedFunction, OptimizedModule


def unwrap(optimized: Any) -> Any:
    """Return the original behind what `apply` or `optimize` returned; anything else as it is."""
    from torchwise import runtime

    return runtime.unwrap(optimized)


def freeze(optimized: OptimizedModule | OptimizedFunction) -> None:
    """Have nothing more compiled or captured: what the plan has not answered by now, the original answers.

    For a service that has called its plan once on inputs of every signature that will come, and must not stop for a new
    one. Where the model or PyTorch's settings change so that the plan would be compiled or captured anew, the original
    answers, too.

    Raises:
        InputError: it is nothing that Torchwise optimised.
        UnsupportedError: this torch does not say when it compiles.
    """
    from torchwise.runtime.module import freezable

    freezable(optimized).freeze()


def unfreeze(optimized: OptimizedModule | OptimizedFunction) -> None:
    """Have calls compile and capture again, until the next `freeze`: to warm up for what changed.

    Raises:
        InputError: it is nothing that Torchwise optimised.
    """
    from torchwise.runtime.module import freezable

    freezable(optimized).unfreeze()


def export_metrics(
    optimized: OptimizedModule | OptimizedFunction, name: str, registry: Any = None
) -> Callable[[], None]:
    """Have Prometheus scrape what became of the calls of `optimized`, and how long they take.

    Nothing is added to the way of a call: counts are read when they are asked for.

    Args:
        optimized: what `apply` or `optimize` returned.
        name: the label `model` of its metrics.
        registry: a `prometheus_client.CollectorRegistry`; by default the global one.

    Returns:
        What takes the metrics away again.

    Raises:
        InputError: it is nothing that Torchwise optimised, or the name is taken.
        UnsupportedError: prometheus-client is not installed; it comes with the extra `metrics`.
    """
    from torchwise.runtime import metrics

    return metrics.export_metrics(optimized, name, registry)
