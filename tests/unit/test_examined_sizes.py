"""A plan for sizes that vary is examined as it is served: with the dimensions that vary, and no others, dynamic."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from builders import a_study
from torchwise.cli.common import resolve_choice
from torchwise.compile import aot
from torchwise.compile.aot import Maker
from torchwise.diagnose import explain_worker, savings
from torchwise.diagnose.analyze import AnalyzeRequest
from torchwise.diagnose.bisect import probe, repro
from torchwise.diagnose.bisect.probe_runner import Probe
from torchwise.diagnose.explain import Inquiry
from torchwise.diagnose.requests import choice_of, make_spec, plan_of
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import VaryingDim, WorkloadSpec
from torchwise.records import Decision
from torchwise.runtime.background import aot_worker
from torchwise.store import open_storage
from torchwise.trial import Job
from torchwise.trial.harness import Harness
from torchwise.workload import Example, Workload

DYNAMIC = Plan(backend="inductor", shapes="dynamic")
VARYING = (VaryingDim("[0][0]", 0, (5, 11)),)
SPEC = WorkloadSpec("zoo:energy_flow.neuron@small", sizes="varying", varying=VARYING)
TARGET = "my:model"
LINES = ("[0][0] float32[8, 4] (4, 1)", "[0][0] float32[5, 4] (4, 1)", "[0][0] float32[11, 4] (4, 1)")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job for a model of one input, at its own size and at two others."""
    file = tmp_path / "model.py"
    file.write_text("import torch\ndef make():\n    return torch.nn.Linear(4, 4).eval(), (torch.ones(8, 4),)\n")
    return Job("try", replace(SPEC, target=f"{file}:make"), DYNAMIC)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Note the descriptions of inputs that a plan is compiled for, in place of compiling it."""
    asked: list[tuple[str, ...]] = []

    def note_inputs(call: Callable[..., Any], *_: Any, inputs: tuple[str, ...] = (), **__: Any) -> Any:
        asked.append(tuple(inputs))
        return SimpleNamespace(call=call, bypass=lambda *_: call)

    for module in (probe, explain_worker, savings, aot_worker):
        monkeypatch.setattr(module, "compile_plan", note_inputs)
    return asked


def test_explain_compiles_the_plan_for_the_sizes_that_vary(job: Job, compiled: list[tuple[str, ...]]) -> None:
    explain_worker._call(Inquiry(job, DYNAMIC, 0.0, time.time(), ""), Harness(job))
    assert compiled == [LINES]


def test_savings_are_measured_with_the_sizes_that_vary(job: Job, compiled: list[tuple[str, ...]]) -> None:
    harness = Harness(job)
    measured = savings.Savings(harness, harness.eager, 1e-5, 1.0, lambda _stage: None)
    with torch.no_grad():
        measured._make_plan_calls(DYNAMIC)
    assert compiled == [LINES]


def test_bisect_compiles_the_plan_for_the_sizes_that_vary(job: Job, compiled: list[tuple[str, ...]]) -> None:
    asked = Probe(job, "plan")
    probe.build(probe.load_subject(asked), asked)
    assert compiled == [LINES]


def test_a_repro_loads_the_sizes_that_vary(job: Job, tmp_path: Path) -> None:
    file = tmp_path / "repro.py"
    repro.write(Probe(job, "plan", file=str(file)), lambda _stage: None)
    found: dict[str, Any] = {"__name__": "repro", "__file__": str(file)}
    exec(file.read_text(), found)
    call, examples = found["load"]()
    assert [len(args[0]) for args, _ in examples] == [8, 5, 11]
    compiled = found["candidate"](call, *examples[0], examples)
    assert compiled._varying == {"[0][0]": (0,)}


def test_code_that_is_compiled_ahead_has_the_dimensions_that_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[set[int], bool]] = []

    def compile_ahead(given: tuple[tuple[torch.Tensor, ...], dict[str, Any]]) -> Any:
        marks = getattr(given[0][0], "_dynamo_weak_dynamic_indices", set())
        seen.append((set(marks), torch._dynamo.config.assume_static_by_default))
        raise AttributeError("no real compilation here")

    monkeypatch.setattr(aot.torch, "compile", lambda *_, **__: SimpleNamespace(aot_compile=compile_ahead))
    x = torch.ones(8, 4)
    for varying, plan in (({"[0][0]": (0,)}, DYNAMIC), ({}, DYNAMIC), ({"[0][0]": (0,)}, Plan(backend="inductor"))):
        with pytest.raises(UnsupportedError, match="cannot compile ahead"):
            Maker(varying)(torch.sin, plan)(x)
    assert seen == [({0}, True), (set(), False), (set(), True)], "static, but for the dimension that varies"
    assert not hasattr(x, "_dynamo_weak_dynamic_indices")


@pytest.fixture
def decision() -> Decision:
    made = a_study(workload=replace(SPEC, target=TARGET)).decision
    assert made is not None
    return made


def test_a_decision_is_examined_at_the_sizes_that_it_was_made_for(decision: Decision) -> None:
    assert make_spec(TARGET, None, "cpu", decision).varying == VARYING
    assert make_spec(TARGET, None, "cpu", decision).sizes == "varying"
    assert make_spec(TARGET, None, "cpu", decision.plan).varying == (), "a plan by itself says nothing of sizes"
    fixed = replace(decision, workload=WorkloadSpec(TARGET))
    assert make_spec(TARGET, None, "cpu", fixed).sizes == "as-given"
    assert (choice_of(decision), plan_of(decision)) == (decision, decision.plan)
    AnalyzeRequest(make_spec(TARGET, None, "cpu", decision), plan_of(decision))


def test_a_decision_is_examined_by_its_own_tolerance_and_metric(decision: Decision) -> None:
    judged = replace(decision, workload=replace(decision.workload, tolerance=0.02, metric="a.b:c"))
    found = make_spec(TARGET, None, "cpu", judged)
    assert (found.tolerance, found.metric) == (0.02, "a.b:c")
    assert make_spec(TARGET, None, "cpu", judged, tolerance=0.1).tolerance == 0.1
    assert make_spec(TARGET, None, "cpu", judged.plan).tolerance is None


def test_the_name_of_a_decided_plan_brings_its_sizes_along(decision: Decision, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    with open_storage(store) as storage:
        storage.import_study(a_study(workload=replace(SPEC, target=TARGET)))
    for name in ("latest", "1", decision.plan.id):
        chosen = resolve_choice(name, (TARGET,), store)
        assert isinstance(chosen, Decision), name
        assert make_spec(TARGET, None, "cpu", chosen).varying == VARYING, name
    assert isinstance(choice_of(decision.plan.id, store), Decision)


def test_inputs_are_described_one_line_an_example() -> None:
    workload = Workload(torch.sin, tuple(Example((torch.ones(rows, 4),)) for rows in (8, 5, 11)))
    assert workload.inputs == LINES
