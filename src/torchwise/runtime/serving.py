"""Functions for programs that use results of `apply` or `optimize` in production: unwrap, freeze, metrics.

They are no methods, since a model may have methods of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torchwise.errors import InputError, UnsupportedError
from torchwise.installation import suggest_extra

if TYPE_CHECKING:
    from torchwise.runtime import OptimizedFunction, OptimizedModule
    from torchwise.runtime.served import Served
    from torchwise.runtime.statistics import Histogram

_COUNTERS = {
    "optimized": ("torchwise_optimized_calls", "Calls that the plan answered."),
    "opened": ("torchwise_opened", "Times that failures kept the plan from answering."),
    "compared": ("torchwise_compared", "Calls compared with the original."),
    "mismatched": ("torchwise_mismatched", "Comparisons that differed."),
    "recompiles": ("torchwise_recompiles", "Calls answered before that compiled again."),
    "first_calls": ("torchwise_first_calls", "Calls that compiled or captured."),
    "first_calls_s": ("torchwise_first_calls_seconds", "Seconds that these took."),
}
"""Name and description of each counter, by the attribute of `Statistics`."""
_GAUGES = {
    "is_frozen": ("torchwise_frozen", "Whether nothing more is compiled or captured."),
    "compiles": ("torchwise_compiles_since_freeze", "Graphs compiled in the process since then."),
    "captures": ("torchwise_captures_since_freeze", "CUDA graphs recorded in the process since then."),
}
_KNOWN: WeakKeyDictionary[Any, _Collector] = WeakKeyDictionary()


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
    _find_served(optimized, "can be frozen").freeze()


def unfreeze(optimized: OptimizedModule | OptimizedFunction) -> None:
    """Permit compilation and capture again until the next `freeze`, to warm up after a change.

    Raises:
        InputError: `optimized` is no result of `apply` or `optimize`.
    """
    _find_served(optimized, "can be frozen").unfreeze()


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
    served = _find_served(optimized, "has metrics")
    try:
        import prometheus_client
    except ImportError as error:
        raise UnsupportedError(
            f"metrics need prometheus-client, which is not installed: {suggest_extra('metrics')}"
        ) from error
    registry = registry or prometheus_client.REGISTRY
    collector = _collectors(registry)
    if name in collector.served:
        raise InputError(f"name is {name!r}, but metrics of a model of that name are exported already: use another")
    collector.served[name] = served

    def remove() -> None:
        if collector.served.get(name) is served:
            del collector.served[name]

    return remove


def _find_served(optimized: Any, predicate: str) -> Served:
    """Return what answers for an optimised module or function.

    Raises:
        InputError: it is nothing that Torchwise optimised.
    """
    from torchwise.runtime.served import dispatcher_of

    served = dispatcher_of(optimized)
    if served is None:
        raise InputError(f"it is a {type(optimized).__name__}, but only the result of torchwise.apply {predicate}")
    return served


def _collectors(registry: Any) -> _Collector:
    """Return the one collector of a registry: metrics of several models share their names."""
    if registry not in _KNOWN:
        _KNOWN[registry] = _Collector()
        registry.register(_KNOWN[registry])
    return _KNOWN[registry]


class _Collector:
    """Gives the counts of all served models as they are when asked."""

    def __init__(self) -> None:
        self.served: dict[str, Served] = {}

    def describe(self) -> list[Any]:
        """Say nothing beforehand: names are fixed, and asking would read the counts."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield every metric."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labels = ["model", "plan"]
        reasons = CounterMetricFamily(
            "torchwise_original_calls", "Calls that the original answered.", labels=[*labels, "reason"]
        )
        failures = CounterMetricFamily("torchwise_failures", "Failures of the plan.", labels=[*labels, "error"])
        counters = {of: CounterMetricFamily(name, text, labels=labels) for of, (name, text) in _COUNTERS.items()}
        gauges = {of: GaugeMetricFamily(name, text, labels=labels) for of, (name, text) in _GAUGES.items()}
        latency = HistogramMetricFamily("torchwise_latency_seconds", "Sampled calls of the plan.", labels=labels)
        for name, served in list(self.served.items()):
            counts, of_model = served.statistics, [name, str(served.decision.plan)]
            for attribute, counter in counters.items():
                counter.add_metric(of_model, getattr(counts, attribute))
            for reason, times in list(counts.original.items()):
                reasons.add_metric([*of_model, reason.value], times)
            for kind, times in list(counts.failures.items()):
                failures.add_metric([*of_model, kind], times)
            values = {"is_frozen": served.is_frozen, "compiles": counts.compiles, "captures": counts.captures}
            for attribute, gauge in gauges.items():
                if (value := values[attribute]) is not None:
                    gauge.add_metric(of_model, value)
            latency.add_metric(of_model, *_buckets(counts.latency))
        yield from (counters.pop("optimized"), reasons, failures, *counters.values(), *gauges.values(), latency)


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Return cumulated counts by upper bound, and the sum of all durations."""
    from torchwise.runtime.statistics import BOUNDS_S

    buckets, below = [], 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), histogram.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets, histogram.sum_s
