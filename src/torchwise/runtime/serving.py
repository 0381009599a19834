"""Functions for programs that run by plans in production: unwrap, freeze, metrics.

They are no methods, since a model may have methods of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torchwise.errors import InputError, UnsupportedError
from torchwise.installation import suggest_extra
from torchwise.keywords import checked_keywords

if TYPE_CHECKING:
    from torchwise.runtime.monitored import Monitored
    from torchwise.runtime.statistics import Histogram

_COUNTERS = {
    "optimized": ("torchwise_optimized_calls", "Calls that the plan answered."),
    "opened": ("torchwise_opened", "Times that failures kept the plan from answering."),
    "compared": ("torchwise_compared", "Calls compared with the original."),
    "mismatched": ("torchwise_mismatched", "Comparisons that differed."),
    "recompiles": ("torchwise_recompiles", "Calls answered before that compiled again."),
    "first_calls": ("torchwise_first_calls", "Calls of a new kind, which compiled or captured."),
    "first_calls_s": ("torchwise_first_calls_seconds", "Seconds that these took."),
    "later_compiles": ("torchwise_later_compiles", "Compilations in other calls."),
    "later_compiles_s": ("torchwise_later_compiles_seconds", "Seconds that these took."),
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


def freeze(optimized: Any) -> None:
    """Forbid further compilation and capture. The original answers calls with input signatures that are new.

    Use it in a service whose calls must never wait for a compilation. First call the plan once with inputs of every
    expected signature. If the model or settings of PyTorch change so that the plan would be compiled or captured again,
    the original also answers. A component that has no plan yet searches for none. A `CompileManager` freezes the
    components that it has by then.

    Args:
        optimized: a result of `apply`, `optimize` or `compiled`, a training step included, or a `CompileManager`.

    Raises:
        InputError: `optimized` is nothing of that kind, or a training step of several ranks.
        UnsupportedError: this version of torch does not report compilations.
    """
    _set_frozen(optimized, frozen=True)


def unfreeze(optimized: Any) -> None:
    """Permit compilation and capture again until the next `freeze`, to warm up after a change.

    Args:
        optimized: as for `freeze`.

    Raises:
        InputError: `optimized` is nothing of that kind.
    """
    _set_frozen(optimized, frozen=False)


def _set_frozen(optimized: Any, *, frozen: bool) -> None:
    from torchwise.runtime.monitored import find_monitored

    for each in find_monitored(optimized, "can be frozen").values():
        each.freeze() if frozen else each.unfreeze()


@checked_keywords()
def export_metrics(optimized: Any, name: str, registry: Any = None) -> Callable[[], None]:
    """Export the number and the latency of the calls of `optimized` to Prometheus.

    Calls take no extra time, as each scrape reads the counts.

    Args:
        optimized: a result of `apply`, `optimize` or `compiled`, a training step included, or a `CompileManager`.
        name: value of the label `model` of its metrics. The components of a manager have "name.component".
        registry: a `prometheus_client.CollectorRegistry`, by default the global one.

    Returns:
        A function that removes the metrics.

    Raises:
        InputError: `optimized` is nothing of that kind, or the name is already in use.
        UnsupportedError: prometheus-client is not installed. It comes with the extra `metrics`.
    """
    from torchwise.runtime.monitored import find_monitored

    find_monitored(optimized, "has metrics")  # which refuses anything else
    try:
        import prometheus_client
    except ImportError as error:
        raise UnsupportedError(
            f"metrics need prometheus-client, which is not installed: {suggest_extra('metrics')}"
        ) from error
    registry = registry or prometheus_client.REGISTRY
    collector = _collectors(registry)
    if name in collector.exported:
        raise InputError(f"name is {name!r}, but metrics of a model of that name are exported already: use another")
    collector.exported[name] = optimized

    def remove() -> None:
        if collector.exported.get(name) is optimized:
            del collector.exported[name]

    return remove


def _collectors(registry: Any) -> _Collector:
    """Return the one collector of a registry: metrics of several models share their names."""
    if registry not in _KNOWN:
        _KNOWN[registry] = _Collector()
        registry.register(_KNOWN[registry])
    return _KNOWN[registry]


class _Collector:
    """Gives the counts of all exported objects as they are when asked, by the plans that answer then."""

    def __init__(self) -> None:
        self.exported: dict[str, Any] = {}

    def describe(self) -> list[Any]:
        """Say nothing beforehand: names are fixed, and asking would read the counts."""
        return []

    def _list_monitored(self) -> list[tuple[str, Monitored]]:
        from torchwise.runtime.monitored import find_monitored

        return [
            (f"{name}.{part}" if part else name, found)
            for name, exported in list(self.exported.items())
            for part, found in find_monitored(exported, "has metrics").items()
        ]

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
        for name, found in self._list_monitored():
            counts, of_model = found.counts, [name, found.plan_name]
            for attribute, counter in counters.items():
                counter.add_metric(of_model, getattr(counts, attribute))
            for reason, times in list(counts.original.items()):
                reasons.add_metric([*of_model, reason.value], times)
            for kind, times in list(counts.failures.items()):
                failures.add_metric([*of_model, kind], times)
            values = {"is_frozen": found.is_frozen, "compiles": counts.compiles, "captures": counts.captures}
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
