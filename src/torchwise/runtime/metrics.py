"""Metrics of a served plan's calls for Prometheus, read at each scrape. They add nothing to a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torchwise.errors import InputError, UnsupportedError
from torchwise.runtime.latency import BOUNDS_S, Histogram
from torchwise.runtime.served import Served, dispatcher_of


def export_metrics(optimized: Any, name: str, registry: Any = None) -> Callable[[], None]:
    """Have Prometheus scrape the metrics of a result of `torchwise.apply`.

    Every metric is named `torchwise_...` and labelled with `model` and `plan`.

    Args:
        optimized: the module or function.
        name: the label `model`. One registry takes each name once.
        registry: a `prometheus_client.CollectorRegistry`, by default the global one.

    Returns:
        A function that removes the metrics.

    Raises:
        InputError: it is nothing that Torchwise optimised, or the name is taken.
        UnsupportedError: prometheus-client is not installed.
    """
    dispatcher = dispatcher_of(optimized)
    if dispatcher is None:
        raise InputError(f"it is a {type(optimized).__name__}, but only the result of torchwise.apply has metrics")
    try:
        import prometheus_client
    except ImportError as error:
        remedy = "pip install 'torchwise[metrics]'"
        raise UnsupportedError(f"metrics need prometheus-client, which is not installed: {remedy}") from error
    registry = registry or prometheus_client.REGISTRY
    collector = _collectors(registry)
    if name in collector.served:
        raise InputError(f"name is {name!r}, but metrics of a model of that name are exported already: use another")
    collector.served[name] = dispatcher

    def remove() -> None:
        if collector.served.get(name) is dispatcher:
            del collector.served[name]

    return remove


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
        by_reason = CounterMetricFamily(
            "torchwise_original_calls", "Calls that the original answered.", labels=[*labels, "reason"]
        )
        optimized = CounterMetricFamily("torchwise_optimized_calls", "Calls that the plan answered.", labels=labels)
        failures = CounterMetricFamily("torchwise_failures", "Failures of the plan.", labels=[*labels, "error"])
        opened = CounterMetricFamily(
            "torchwise_opened", "Times that failures kept the plan from answering.", labels=labels
        )
        compared = CounterMetricFamily("torchwise_compared", "Calls compared with the original.", labels=labels)
        mismatched = CounterMetricFamily("torchwise_mismatched", "Comparisons that differed.", labels=labels)
        again = CounterMetricFamily("torchwise_recompiles", "Calls answered before that compiled again.", labels=labels)
        firsts = CounterMetricFamily("torchwise_first_calls", "Calls that compiled or captured.", labels=labels)
        first_s = CounterMetricFamily("torchwise_first_calls_seconds", "Seconds that these took.", labels=labels)
        frozen = GaugeMetricFamily("torchwise_frozen", "Whether nothing more is compiled or captured.", labels=labels)
        compiles = GaugeMetricFamily(
            "torchwise_compiles_since_freeze", "Graphs compiled in the process since then.", labels=labels
        )
        captures = GaugeMetricFamily(
            "torchwise_captures_since_freeze", "CUDA graphs recorded in the process since then.", labels=labels
        )
        latency = HistogramMetricFamily("torchwise_latency_seconds", "Sampled calls of the plan.", labels=labels)
        for name, dispatcher in list(self.served.items()):
            counts, of = dispatcher.statistics, [name, str(dispatcher.decision.plan)]
            optimized.add_metric(of, counts.optimized)
            for reason, times in list(counts.original.items()):
                by_reason.add_metric([*of, reason.value], times)
            for kind, times in list(counts.failures.items()):
                failures.add_metric([*of, kind], times)
            opened.add_metric(of, counts.opened)
            compared.add_metric(of, counts.compared)
            mismatched.add_metric(of, counts.mismatched)
            again.add_metric(of, counts.recompiles)
            firsts.add_metric(of, counts.first_calls)
            first_s.add_metric(of, counts.first_calls_s)
            frozen.add_metric(of, dispatcher.is_frozen)
            if counts.compiles is not None and counts.captures is not None:
                compiles.add_metric(of, counts.compiles)
                captures.add_metric(of, counts.captures)
            latency.add_metric(of, *_buckets(counts.latency))
        yield from (optimized, by_reason, failures, opened, compared, mismatched, again, firsts, first_s)
        yield from (frozen, compiles, captures, latency)


_KNOWN: WeakKeyDictionary[Any, _Collector] = WeakKeyDictionary()


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Return cumulated counts by upper bound, and the sum of all durations."""
    buckets, below = [], 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), histogram.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets, histogram.sum_s
