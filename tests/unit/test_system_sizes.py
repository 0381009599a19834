"""Systems of the zoo whose sizes change from call to call, tuned at one size and called as their users call them.

A field is called on other grids with other sources, and a processor with other numbers of live flows. One plan must
answer all of them, right, and compile no more than the issue allows: three times. How fast it is, is for
`benchmarks/varying_sizes.py`. So the plan is named, and it serves whatever a busy machine's timings decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import torchwise
from live_decisions import make_decision
from torchwise.compile.backends import inductor
from torchwise.plan import Plan
from torchwise.records import Decision, Outcome
from torchwise.runtime.components import CompileManager
from torchwise.workload import Example
from torchwise.workload.identity import describe_example
from torchwise.workload.target import load
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo import ivhl
from torchwise_models.zoo.energy_flow.storage import FREE, FlowStorage

FIELD, PROCESSOR = "zoo:ivhl.field_superposition@small", "zoo:energy_flow.processor@small"
FOR_ALL_GRIDS = Plan(backend="inductor", transforms=("complex_to_real",), shapes="dynamic")
STATIC_FORM = Plan(backend="inductor", transforms=("static_form", "isolate_rnn"))
IN_ROWS = Plan(backend="row_programs", transforms=("static_form",))
GRIDS = ((64, 3), (100, 10), (333, 7), (777, 20), (1500, 2))
LIVE = (8, 5, 1, 3, 0, 7)
MAX_COMPILATIONS = 3

pytestmark = pytest.mark.usefixtures("dynamo_afresh")


@pytest.fixture(autouse=True)
def _graphs_counted_anew() -> Iterator[None]:
    counters.clear()
    yield
    counters.clear()


@pytest.fixture
def partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate no code: the rewrites of a plan, which come before, are applied all the same."""
    backend = torch._dynamo.lookup_backend("aot_eager_decomp_partition")
    monkeypatch.setattr(inductor, "_inductor", lambda _options: backend)


def draw_field(grid: int, sources: int) -> tuple[Any, ...]:
    """Return the inputs of a field on another grid, with other sources."""
    request = Request("field", "cpu", torch.float32, seed=grid)
    return ivhl.build_field_superposition(request, grid=grid, sources=sources).examples[0].args


def draw_live(storage: FlowStorage, live: int) -> FlowStorage:
    """Return the storage with so many live flows, anywhere in it."""
    slots = len(storage.active)
    active = torch.zeros(slots, dtype=torch.bool)
    active[torch.randperm(slots, generator=torch.Generator().manual_seed(live))[:live]] = True
    return storage._replace(active=active, ids=torch.where(active, torch.arange(slots), FREE))


def check_calls(call: Callable[..., Any], decision: Decision, inputs: list[tuple[Any, ...]]) -> Any:
    """Call a model by a decision on each of the inputs, compare each answer, and return the counts of the calls.

    Nothing is compiled after the first call.
    """
    fast = torchwise.apply(call, decision)
    compiled = []
    for args in inputs:
        torch.testing.assert_close(fast(*args), call(*args), rtol=1e-3, atol=1e-4)
        compiled.append(counters["stats"]["unique_graphs"])
    counts = fast.statistics
    assert (counts.optimized, dict(counts.original)) == (len(inputs), {}), "the plan answers every call"
    assert compiled == [compiled[0]] * len(inputs)
    assert counts.later_compiles == 0
    return counts


def tune(target: str, plan: Plan, folder: Path, **options: Any) -> Decision:
    """Tune a target for one named plan, which must be verified, and return a decision for it."""
    study = torchwise.tune(
        target, plans=[plan], calls=10**8, effort="quick", store=str(folder / "s.db"), progress=False, **options
    )
    (trial,) = study.trials
    assert trial.verdict is not None, trial.failure
    assert trial.verdict.outcome is Outcome.PASS, trial.reason
    return replace(study.decision, plan=plan)


# ---- without a search


@pytest.mark.usefixtures("partitioned")
def test_a_plan_for_all_sizes_answers_other_grids_and_sources() -> None:
    call, given, other = ivhl.field_superposition, draw_field(50, 4), draw_field(60, 6)
    decision = make_decision(call, FOR_ALL_GRIDS, *given)
    decision = replace(decision, inputs=tuple(describe_example(Example(args)) for args in (given, other)))
    check_calls(call, decision, [draw_field(*sizes) for sizes in GRIDS])
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.nightly
@pytest.mark.usefixtures("partitioned")
def test_the_static_form_answers_any_number_of_live_flows() -> None:
    workload = load(PROCESSOR)
    (storage,) = workload.examples[0].args
    decision = make_decision(workload.call, STATIC_FORM, storage)
    counts = check_calls(workload.call, decision, [(draw_live(storage, live),) for live in LIVE])
    assert counts.first_calls == 1, "flows that come and go are no other kind of call"


@pytest.mark.usefixtures("partitioned")
def test_a_component_with_dynamic_code_answers_sizes_of_later_calls() -> None:
    manager = CompileManager(dynamic=True, verify=False, device="cpu", progress=False)
    call = manager.register(ivhl.field_superposition, "field")
    for sizes in GRIDS:
        args = draw_field(*sizes)
        torch.testing.assert_close(call(*args), ivhl.field_superposition(*args), rtol=1e-3, atol=1e-4)
    found = manager.statistics()["field"]
    assert (found.plan, found.optimized) == ("inductor + dynamic", len(GRIDS) - 1), "the first call is the original's"
    assert counters["stats"]["unique_graphs"] <= MAX_COMPILATIONS


# ---- tuned as a user does


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.usefixtures("brief_searches")
def test_a_field_tuned_at_one_size_answers_other_grids_and_sources(tmp_path: Path) -> None:
    decision = tune(FIELD, FOR_ALL_GRIDS, tmp_path, sizes="varying")
    assert {one.path for one in decision.workload.varying} >= {"[0][0]", "[0][1]"}, "points and sources"
    check_calls(load(FIELD).call, decision, [draw_field(*sizes) for sizes in GRIDS])
    assert counters["stats"]["unique_graphs"] <= MAX_COMPILATIONS


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.usefixtures("brief_searches")
def test_a_processor_tuned_as_it_is_given_answers_any_number_of_live_flows(tmp_path: Path) -> None:
    workload = load(PROCESSOR)
    (storage,) = workload.examples[0].args
    check_calls(workload.call, tune(PROCESSOR, IN_ROWS, tmp_path), [(draw_live(storage, live),) for live in LIVE])
    assert counters["stats"]["unique_graphs"] <= MAX_COMPILATIONS
