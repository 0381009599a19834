"""Latency of a served plan, the speed promised of it, and all counts for Prometheus."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import prometheus_client
import pytest
import torch

import torchwise
from live_decisions import make_decision
from torchwise.alerts import heard
from torchwise.errors import InputError, UnsupportedError
from torchwise.plan import Plan
from torchwise.records.statistics import Interval
from torchwise.runtime import monitors
from torchwise.runtime.circuit_breaker import PlanCircuits
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.monitors import EVERY, MAX_EVERY, RECENT, Latency, SpeedMonitor, choose_every
from torchwise.runtime.statistics import BOUNDS_S, MAX_ERROR_TYPES, OTHER, Histogram

PLAN = Plan(threads=torch.get_num_threads() + 1)
X = torch.randn(3, 4)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Have every timed call take the last of these seconds."""
    took, now = [1e-3], [0.0]

    def read() -> float:
        now[0] += took[-1]
        return now[0]

    monkeypatch.setattr(monitors.time, "perf_counter", read)
    return took


def test_a_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram()
    for seconds in (1e-6, 1.1e-6, 3e-3, 3e-3, 1e9):
        histogram.add(seconds)
    counted = {bound: count for bound, count in zip((*BOUNDS_S, None), histogram.counts, strict=True) if count}
    assert list(counted.values()) == [1, 1, 2, 1]
    assert list(counted) == pytest.approx([1e-6, 2e-6, 5e-3, None])
    assert histogram.sum_s == pytest.approx(1e9)
    assert histogram.quantile(0.5) == pytest.approx(5e-3)
    assert histogram.quantile(0.99) == 50.0, "or longer"
    assert Histogram().quantile(0.5) is None


@pytest.mark.parametrize(("seconds", "every"), [(1e-6, MAX_EVERY), (1e-3, EVERY), (0.1, 12), (1.0, 1), (60.0, 1)])
def test_long_calls_are_timed_more_often(seconds: float, every: int) -> None:
    assert choose_every(seconds) == every


@torch.no_grad()
def test_one_call_in_so_many_is_timed(clock: list[float]) -> None:
    fast = torchwise.apply(double, make_decision(double, PLAN, X))
    for _ in range(3 * EVERY + 2):
        fast(X)
    counts = fast.statistics
    assert (sum(counts.latency.counts), counts.latency.quantile(0.5)) == (4, pytest.approx(1e-3)), "the second, and 3"
    assert (counts.first_calls, counts.first_calls_s > 0) == (1, True)
    assert json.loads(json.dumps(counts.snapshot()))["latency"]["calls"] == 4


def call_until_alert(fast: Any, limit: int = 10_000) -> int | None:
    """Return the number of calls after which there is an alert, or None if there is none within the limit."""
    with heard() as alerts:
        for calls in range(1, limit + 1):
            fast(X)
            if alerts:
                return calls
    return None


def promise(seconds: float) -> Any:
    return replace(make_decision(double, PLAN, X), speedup=Interval(1.9, 2.0, 2.1), baseline_s=2 * seconds)


@torch.no_grad()
@pytest.mark.parametrize("seconds", [1e-5, 1e-3, 0.05, 2.0])
def test_a_plan_that_is_slower_than_promised_is_said_soon(clock: list[float], seconds: float) -> None:
    fast = torchwise.apply(double, promise(seconds))
    clock.append(seconds)
    assert call_until_alert(fast, 300) is None
    clock.append(1.6 * seconds)
    calls = call_until_alert(fast)
    assert calls is not None
    assert calls <= 200 or calls * 1.6 * seconds <= 10


@torch.no_grad()
def test_a_few_slow_calls_are_no_slow_down(clock: list[float]) -> None:
    fast = torchwise.apply(double, promise(1e-3))
    for _ in range(20):
        clock.append(1e-3)
        assert call_until_alert(fast, 5 * EVERY) is None
        clock.append(0.1)
        assert call_until_alert(fast, 3 * EVERY) is None


@torch.no_grad()
def test_a_slow_down_is_said_again_only_after_the_plan_was_as_fast_as_promised(clock: list[float]) -> None:
    fast = torchwise.apply(double, promise(1e-3))
    with heard() as alerts:
        for took in (1.4e-3, 1.6e-3, 1.4e-3, 1.6e-3, 1e-3, 1.6e-3):
            clock.append(took)
            for _ in range(RECENT * EVERY):
                fast(X)
        fast(X)  # the very first call compiles, and is not timed
    assert [alert.kind for alert in alerts] == ["slow_down"] * 2
    assert alerts[0].message == f"plan {PLAN} takes 1.6 ms, but 1 ms were measured for the decision"
    assert alerts[0].facts["promised_s"] == pytest.approx(1e-3)


@torch.no_grad()
@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, shapes="dynamic", backend="inductor")])
def test_nothing_is_promised_for_a_mix_of_inputs_or_of_sizes(plan: Plan) -> None:
    decision = replace(promise(1e-6), plan=plan)
    if plan == PLAN:
        decision = replace(decision, inputs=(*decision.inputs, "more"))
    with heard() as alerts:
        SpeedMonitor(decision)(1.0)
    assert alerts == []


class Event:
    """Stands in for an event on a GPU that is `behind` queries behind."""

    behind = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...

    def query(self) -> bool:
        Event.behind -= 1
        return Event.behind < 0

    def elapsed_time(self, end: Event) -> float:
        return 3.0


def test_on_a_gpu_events_are_read_later_and_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    histogram = Histogram()
    timer = Latency("cuda", lambda _: None)
    assert timer.time_call(double, (X,), {}, histogram).equal(double(X))
    assert sum(histogram.counts) == 0
    Event.behind = 1
    timer.time_call(double, (X,), {}, histogram)
    assert sum(histogram.counts) == 0, "the GPU is not there yet"
    timer.time_call(double, (X,), {}, histogram)
    assert (sum(histogram.counts), histogram.sum_s) == (1, pytest.approx(3e-3))
    capturing[0] = True
    timer.time_call(double, (X,), {}, histogram)
    assert sum(histogram.counts) == 1, "while somebody records a graph, nothing is asked of the GPU"


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry()


def sample(registry: prometheus_client.CollectorRegistry, name: str, **labels: str) -> float | None:
    found: float | None = registry.get_sample_value(f"torchwise_{name}", {"plan": str(PLAN), **labels})
    return found


@torch.no_grad()
def test_prometheus_sees_the_counts_as_they_are_when_it_asks(
    registry: prometheus_client.CollectorRegistry, clock: list[float]
) -> None:
    one, two = (torchwise.apply(double, make_decision(double, PLAN, X)) for _ in range(2))
    remove = torchwise.export_metrics(one, "one", registry)
    torchwise.export_metrics(two, "two", registry)
    for _ in range(EVERY + 2):
        one(X)
    one(torch.randn(5))
    two(X)
    assert sample(registry, "optimized_calls_total", model="one") == EVERY + 2
    assert sample(registry, "optimized_calls_total", model="two") == 1
    assert sample(registry, "original_calls_total", model="one", reason="inputs_not_verified") == 1
    assert sample(registry, "first_calls_total", model="one") == 1
    assert sample(registry, "frozen", model="one") == 0
    torchwise.freeze(one)
    assert sample(registry, "frozen", model="one") == 1
    assert sample(registry, "latency_seconds_bucket", model="one", le="0.002") == 2
    assert sample(registry, "latency_seconds_count", model="one") == 2
    remove()
    assert sample(registry, "optimized_calls_total", model="one") is None
    assert b"torchwise_optimized_calls_total" in prometheus_client.generate_latest(registry)


def label_sets(registry: prometheus_client.CollectorRegistry, name: str, label: str) -> set[str]:
    samples = [sample for metric in registry.collect() for sample in metric.samples if sample.name == name]
    return {sample.labels[label] for sample in samples}


class Branching(torch.nn.Module):
    """A model whose calls may fail, of a kind that differs from call to call."""

    fails_with: type[Exception] | None = None

    def forward(self, x: torch.Tensor, note: str = "") -> torch.Tensor:
        if self.fails_with is not None and torch.get_num_threads() == PLAN.threads:  # under the plan alone
            raise self.fails_with(note)
        return x * 2


def test_reasons_in_labels_are_bounded_whatever_varies_from_call_to_call(
    registry: prometheus_client.CollectorRegistry,
) -> None:
    made = [(model := Branching().eval(), torchwise.apply(model, make_decision(model, PLAN, X))) for _ in range(30)]
    _, fast = made[0]
    torchwise.export_metrics(fast, "it", registry)
    for i in range(30):  # shapes, values, classes, hooks, modes, settings, devices, errors, and sentences of users
        with torch.no_grad():
            fast(torch.randn(i + 4, 2))
            fast(X, note=f"request {i}")
            fast(type(f"Tensor{i}", (torch.Tensor,), {})(X))
            fast(X.to("meta"))
            with torch.autocast("cpu", torch.bfloat16):
                fast(X)
            handle = made[0][0].register_forward_hook(lambda *_: None)
            fast(X)
            handle.remove()
            made[0][0].train()
            fast(X)
            made[0][0].eval()
        torch.func.vmap(fast)(torch.randn(i + 1, 4))
    for i in range(30):
        made[0][0].fails_with = type(f"Error{i}", (Exception,), {})
        with torch.no_grad():
            fast(X)
            fast._dispatcher._circuits = PlanCircuits()
    dispatcher = fast._dispatcher
    for i in range(30):
        dispatcher.close(Fallback(FallbackReason.CLOSED, f"closed by user {i}"))
        fast(X)
        dispatcher.close(Fallback(FallbackReason.CANARY_MISMATCH, f"output is off by {i}"))
        fast(X)
    reasons = label_sets(registry, "torchwise_original_calls_total", "reason")
    assert {"inputs_not_verified", "plan_failed", "hooks_changed", "closed", "other_device"} <= reasons
    assert reasons <= {reason.value for reason in FallbackReason}
    errors = label_sets(registry, "torchwise_failures_total", "error")
    assert (len(errors), OTHER in errors) == (MAX_ERROR_TYPES + 1, True)
    assert len(dispatcher.statistics.sentences) == len(reasons)


def test_an_old_remover_leaves_another_model_of_the_name_alone(registry: prometheus_client.CollectorRegistry) -> None:
    one, two = (torchwise.apply(double, make_decision(double, PLAN, X)) for _ in range(2))
    remove = torchwise.export_metrics(one, "it", registry)
    remove()
    torchwise.export_metrics(two, "it", registry)
    remove()
    assert sample(registry, "frozen", model="it") == 0


def test_a_name_is_taken_once(registry: prometheus_client.CollectorRegistry) -> None:
    fast = torchwise.apply(double, make_decision(double, PLAN, X))
    torchwise.export_metrics(fast, "it", registry)
    with pytest.raises(InputError, match="name is 'it', but metrics of a model of that name are exported already"):
        torchwise.export_metrics(fast, "it", registry)


def test_only_what_was_optimised_has_metrics(registry: prometheus_client.CollectorRegistry) -> None:
    for other in (double, torch.nn.Linear(2, 2), [], None):
        with pytest.raises(InputError, match=r"Torchwise did not make it, but only a result of .* has metrics"):
            torchwise.export_metrics(other, "it", registry)
    with pytest.raises(InputError, match=r"it is of type function, and .* can be frozen"):
        torchwise.freeze(double)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    fast: Any = torchwise.apply(double, make_decision(double, PLAN, X))
    with pytest.raises(
        UnsupportedError, match=r"prometheus-client, which is not installed: pip install prometheus-client"
    ):
        torchwise.export_metrics(fast, "it")
