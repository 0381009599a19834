"""Steps, components and managers are monitored as modules are: counts, latency, freezing, alerts and metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import prometheus_client
import pytest
import torch
from components_finders import THREADS, Failing, Finder
from step_samples import Net, a_step, batch, batches, collect_step_state

import torchwise
from live_decisions import make_decision
from torchwise.alerts import heard
from torchwise.compile.backends import inductor
from torchwise.plan import EAGER, Plan
from torchwise.records import Interval
from torchwise.runtime import Dispatcher, FallbackReason, Statistics, monitors
from torchwise.runtime import step as step_module
from torchwise.runtime.components import CompileManager
from torchwise.runtime.components.config import VARIABLE
from torchwise.runtime.fallback_reason import CHOICES, Fallback
from torchwise.runtime.monitors import EVERY
from torchwise.runtime.served import served_of

X = torch.randn(3, 4)
FUSED = Plan(optimizer="fused")
MODEL = Plan(backend="inductor")
UNSEEN = [FallbackReason.INPUTS_NOT_VERIFIED]


@pytest.fixture(autouse=True)
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def captured_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have Inductor compile nothing, and graphs run as Dynamo captured them."""
    torch._dynamo.reset()
    monkeypatch.setattr(inductor, "_backend", lambda _plan, _options: lambda graph, _inputs: graph.forward)
    yield
    torch._dynamo.reset()


def read(registry: prometheus_client.CollectorRegistry, name: str, **labels: str) -> list[float]:
    """Return the values of a metric that has these labels."""
    return [
        sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == f"torchwise_{name}" and labels.items() <= sample.labels.items()
    ]


def make_step(plan: Plan = FUSED, *rows: int, **changes: Any) -> Any:
    step = a_step(Net())
    decision = make_decision(step, plan, *batch())
    more = (make_decision(step, plan, *batch(rows=count)).inputs[0] for count in rows)
    return torchwise.apply(step, replace(decision, inputs=(*decision.inputs, *more), **changes))


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def test_a_step_has_metrics_of_its_own(registry: prometheus_client.CollectorRegistry) -> None:
    step = make_step()
    torchwise.export_metrics(step, "training", registry)
    for given in (*batches(6), *batches(2, rows=5)):
        step(*given)
    assert read(registry, "optimized_calls_total", model="training", plan=str(FUSED)) == [6]
    assert read(registry, "original_calls_total", model="training", reason=UNSEEN[0]) == [2]
    assert read(registry, "first_calls_total", model="training") == [step_module.FIRST_CALLS]
    assert read(registry, "first_calls_seconds_total", model="training")[0] > 0
    assert read(registry, "latency_seconds_count", model="training")[0] >= 1, "a sample of the steps after those"


def test_components_are_exported_one_by_one_as_they_come(registry: prometheus_client.CollectorRegistry) -> None:
    manager = CompileManager(find=Finder())
    torchwise.export_metrics(manager, "all", registry)
    assert read(registry, "optimized_calls_total") == []
    call, module = manager.register(double, "double"), manager.register(torch.nn.Linear(4, 4), "layer")
    torchwise.export_metrics(call, "function", registry)
    torchwise.export_metrics(module, "module", registry)
    with torch.no_grad():
        for _ in range(3):
            call(X)
            module(X)
    for name in ("all.double", "function", "all.layer", "module"):
        assert read(registry, "optimized_calls_total", model=name, plan=str(THREADS)) == [2], name
        assert read(registry, "original_calls_total", model=name, reason="first_call") == [1], name
    found = manager.statistics()["double"]
    assert json.loads(json.dumps(found.snapshot()))["fallback_rate"] == 0
    assert (found.counts.calls, found.snapshot()["plan"]) == (3, str(THREADS))


def test_metrics_follow_a_plan_that_is_swapped_in(registry: prometheus_client.CollectorRegistry) -> None:
    from torchwise.runtime import Dispatcher
    from torchwise.runtime.served import swap

    fast = torchwise.apply(double, make_decision(double, EAGER, X))
    torchwise.export_metrics(fast, "it", registry)
    swap(fast, Dispatcher(double, make_decision(double, THREADS, X)))
    with torch.no_grad():
        fast(X)
    assert read(registry, "optimized_calls_total", model="it", plan=str(THREADS)) == [1]


def test_a_frozen_step_takes_no_new_kind_of_batch_by_the_plan() -> None:
    step = make_step(FUSED, 5)
    step(*batch())
    torchwise.freeze(step)
    step(*batch())
    assert step.statistics.original == {FallbackReason.FROZEN: 1}, "one first step is left, which may capture"
    assert served_of(step).can_run(batch(), {}).reason is FallbackReason.FROZEN  # type: ignore[union-attr]
    torchwise.unfreeze(step)
    step(*batch())
    torchwise.freeze(step)
    for given in batches(3):
        step(*given)
    step(*batch(rows=5))
    assert (step.statistics.optimized, step.statistics.original) == (5, {FallbackReason.FROZEN: 2})
    assert (step.statistics.compiles, step.statistics.captures) == (0, 0)
    step.close()
    step(*batch())
    assert step.statistics.original[FallbackReason.FROZEN] == 3, "which would compile the plan again"


class Styled(Net):
    style = "plain"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = super().forward(x) * len(self.style)
        return scaled


@pytest.mark.usefixtures("captured_only")
def test_a_frozen_step_that_would_compile_is_taken_as_written() -> None:
    written, step = a_step(Styled(), optimizer=torch.optim.SGD), a_step(Styled(), optimizer=torch.optim.SGD)
    fast: Any = torchwise.apply(step, make_decision(step, MODEL, *batch()))
    for number, given in enumerate(batches(8)):
        if number == 3:
            torchwise.freeze(fast)
        if number == 4:
            fast.model.style = written.model.style = "another"
        if number == 7:
            torchwise.unfreeze(fast)
        fast(*given)
        written(*given)
    counts = fast.statistics
    assert (counts.optimized, counts.original) == (5, {FallbackReason.FROZEN_CHANGED: 3})
    assert not counts.failures
    assert counts.later_compiles == 1, "after it was unfrozen"
    for ours, theirs in zip(collect_step_state(fast), collect_step_state(written), strict=True):
        if isinstance(ours, torch.Tensor) and ours.is_floating_point():
            torch.testing.assert_close(ours, theirs)


@torch.no_grad()
def test_a_frozen_component_searches_no_more_and_its_plan_compiles_no_more() -> None:
    find = Finder()
    manager = CompileManager(find=find)
    found, late = manager.register(double, "found"), manager.register(triple, "late")
    found(X), found(X)
    torchwise.freeze(manager)
    for call, x in ((found, X), (found, torch.randn(7)), (late, X)):
        call(x)
    statistics = manager.statistics()
    assert statistics["found"].optimized == 2
    assert list(statistics["found"].original) == [FallbackReason.FIRST_CALL, *UNSEEN]
    assert statistics["late"].original == {FallbackReason.FROZEN: 1}
    assert statistics["found"].counts.compiles == 0
    assert len(find.asked) == 1
    torchwise.unfreeze(manager)
    late(X), late(X)
    assert (len(find.asked), manager.statistics()["late"].optimized) == (2, 1)


def test_a_step_that_is_slower_than_promised_raises_an_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitors, "EVERY", 2)
    step = make_step(speedup=Interval(1.9, 2.0, 2.1), baseline_s=2e-9)
    with heard() as alerts:
        for given in batches(30):
            step(*given)
    assert [alert.kind for alert in alerts] == ["slow_down"]


def test_a_component_that_is_slower_than_promised_raises_an_alert() -> None:
    manager = CompileManager(find=Finder(speedup=1000))  # it promises 10 microseconds

    def pause(x: torch.Tensor) -> torch.Tensor:
        time.sleep(2e-4)
        return x

    call = manager.register(pause)
    with torch.no_grad(), heard() as alerts:
        for _ in range(200):
            call(X)
    (found,) = manager.statistics().values()
    assert sum(found.counts.latency.counts) >= 200 // EVERY
    assert [alert.kind for alert in alerts] == ["slow_down"]


def test_a_failed_search_for_a_component_raises_an_alert() -> None:
    call = CompileManager(find=Failing()).register(double)
    with heard() as alerts:
        call(X), call(X)
    assert [alert.kind for alert in alerts] == ["search_failed"]
    assert "component double runs its original code until clear(): the search" in alerts[0].message


def test_calls_on_other_inputs_are_counted_by_what_differs_and_only_so_many_kinds() -> None:
    fast = torchwise.apply(torch.sin, make_decision(torch.sin, Plan(threads=1), torch.ones(4)))
    with torch.no_grad():
        for length in (4, 5, 5, *range(6, 40)):
            fast(torch.ones(length))
    counts = fast.statistics.snapshot()["unverified"]
    assert counts["input 0 is float32[5] (1,), was float32[4] (1,)"] == 2
    assert (len(counts), sum(counts.values())) == (21, 36)
    assert counts["other"] == 15


def test_sizes_that_never_come_twice_are_learnt_from_as_well() -> None:
    learnt: list[int] = []
    decision = make_decision(torch.sin, Plan(threads=1), torch.ones(4))
    served = Dispatcher(torch.sin, decision, learn=lambda kinds: learnt.append(len(kinds)))
    with torch.no_grad():
        for length in range(5, 1010):
            served(torch.ones(length))
    assert learnt == [20], "told once, of those that came first"


def test_the_share_of_calls_that_miss_begins_anew_with_another_plan(caplog: pytest.LogCaptureFixture) -> None:
    counts = Statistics()
    counts.reasons[FallbackReason.INPUTS_NOT_VERIFIED] = 900
    served = Dispatcher(torch.sin, make_decision(torch.sin, Plan(threads=1), X), statistics=counts)
    with torch.no_grad():
        for _ in range(1100):
            served(X)
        served(torch.ones(1))
        assert "went to the original" not in caplog.text
        for _ in range(100):
            served(torch.ones(1))
    assert "of 1,158 calls went to the original" in caplog.text


@pytest.mark.parametrize("reason", FallbackReason)
def test_calls_that_no_plan_was_to_answer_are_no_fallbacks(reason: FallbackReason) -> None:
    counts = Statistics()
    counts.count(Fallback(reason))
    assert counts.original == {reason: 1}
    assert counts.fallback_rate == (0 if reason in CHOICES else 1)


def make_eager_component() -> Callable[..., Any]:
    return CompileManager(find=Finder(EAGER)).register(double)


@pytest.mark.parametrize("make", [lambda: make_step(EAGER), make_eager_component])
def test_what_stays_with_eager_has_no_fallbacks(
    make: Callable[[], Any], registry: prometheus_client.CollectorRegistry
) -> None:
    thing = make()
    torchwise.export_metrics(thing, "it", registry)
    given = batch() if hasattr(thing, "optimizer") else (X,)
    for _ in range(30):
        thing(*given)
    (found,) = (served_of(thing) or torchwise.runtime.monitored.find_monitored(thing, "")[""],)
    assert found.counts.fallback_rate == 0
    assert found.counts.original[FallbackReason.EAGER_DECISION] >= 29
