"""Every result prints as one line, and a notebook shows it as a page."""

from __future__ import annotations

import inspect
import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torchwise
from analysis_samples import an_analysis
from bench_samples import a_benchmark
from builders import a_study
from explain_samples import explanation, make_finding, price
from live_decisions import make_decision
from torchwise import artifact, bucketing, components, lock, training
from torchwise.diagnose.analyze import Analysis
from torchwise.records.bisection import Bisection, Observation, Symptom
from torchwise.records.comparison import compare
from torchwise.records.compile_events import CompileEvents
from torchwise.records.recording import RecordedModule, Recording
from torchwise.records.scale import BatchFit, SizeTried
from torchwise.records.statistics import Interval
from torchwise.records.steps import PlanStep
from torchwise.report.views import render_view
from torchwise.runtime.api import Study
from torchwise.runtime.bucketing.padding_check import VerifiedPadding
from torchwise.runtime.components.component import Component
from torchwise.runtime.components.statistics import ComponentStatistics
from torchwise.runtime.program.calls import Calls
from torchwise.runtime.program.tuned import OptimizedProgram, TunedModule, TunedProgram
from torchwise.runtime.statistics import BatchStatistics, Counts, Statistics
from torchwise.study.lock.check_results import Check
from torchwise.study.lock.file import Lock

PACKAGES = (torchwise, artifact, bucketing, components, lock, training)
IN_USE = {
    *(
        "Bucketed",
        "BatchedFunction",
        "BatchServer",
        "CapturedStep",
        "Component",
        "CompileConfig",
        "CompileManager",
        "OptimizedFunction",
    ),
    *("OptimizedModule", "OptimizedStep", "RankedStep", "Rollout", "Watch", "BucketedFunction", "BucketedModule"),
    *("Ranks", "PlannedForward", "Example", "Plan", "Interval", "Padding", "BackgroundTuning", "Numerics"),
    *("Parts", "TrainStep", "TuneKeywords", "Workload"),
}
"""Public classes that a program goes on using, or gives as input. They are no results."""


def list_annotations() -> Iterator[str]:
    """Yield what public functions, and the public methods and properties of public classes, return."""
    for package in PACKAGES:
        for name in package.__all__:
            public = getattr(package, name)
            if inspect.isfunction(public):
                yield str(inspect.signature(public).return_annotation)
            for key, one in vars(public).items() if inspect.isclass(public) else ():
                got = one.fget if isinstance(one, property) else one
                if not key.startswith("_") and inspect.isfunction(got):
                    yield str(inspect.signature(got).return_annotation)


def list_result_types() -> dict[str, type]:
    """List the classes of Torchwise among them, but for those in use."""
    classes: dict[str, type] = {}
    for module in [one for name, one in sys.modules.items() if name.split(".")[0] == "torchwise"]:
        for name, one in vars(module).items():
            if inspect.isclass(one) and (name not in classes or hasattr(one, "_repr_html_")):
                classes[name] = one  # a choice of plans has the name of a result, too
    names = {name for annotation in list_annotations() for name in re.findall(r"\b[A-Z]\w+", annotation)}
    own = {name: classes[name] for name in names & classes.keys() if classes[name].__module__.startswith("torchwise")}
    return {name: one for name, one in own.items() if name not in IN_USE}


STUDY = a_study()
assert STUDY.decision is not None
TRACKER = torch.nn.Linear(1, 1)
RESULTS: list[Any] = [
    Analysis(an_analysis()),
    BatchFit("live:Net", torchwise.EAGER, (SizeTried(8, 100.0, 2**20), SizeTried(16, problem="oom"))),
    Check((), 0.05, 0.95),
    CompileEvents(1.5),
    ComponentStatistics(plan="inductor", optimized=3),
    Counts(),
    Lock(),
    PlanStep("inductor", torchwise.Plan(backend="inductor"), gain=Interval(1.0, 1.1, 1.2)),
    OptimizedProgram(TRACKER, TunedProgram(Recording("program", 1.0), ())),
    Statistics(optimized=3),
    Study(STUDY),
    TunedProgram(Recording("program", 1.0), ()),
    BatchStatistics(3, 4, 2, split=1, latencies_s=deque([0.001] * 9000)),
    VerifiedPadding(bucketing.Padding({0: 1}), (8, 16), torchwise.Example((torch.ones(2000),)), 12, True),
    a_benchmark(),
    Bisection(STUDY.workload, STUDY.environment, Observation(Symptom.NONE)),
    an_analysis(),
    bucketing.Choice("buckets", (8, 16), "they cover all sizes"),
    compare(a_benchmark(), a_benchmark()),
    explanation(make_finding(found=price(1e-6))),
    STUDY,
    STUDY.decision,
    STUDY.trials[0],
]


@pytest.mark.parametrize("name", sorted(list_result_types()))
def test_every_public_result_type_has_a_line_and_a_page_of_its_own(name: str) -> None:
    kind = list_result_types()[name]
    assert not hasattr(kind.__repr__, "__wrapped__"), "it prints all fields of a dataclass"
    assert kind.__repr__ is not object.__repr__
    assert hasattr(kind, "_repr_html_")


@pytest.mark.parametrize("result", RESULTS, ids=lambda one: type(one).__name__)
def test_a_result_prints_as_one_readable_line(result: Any) -> None:
    line = repr(result)
    assert re.fullmatch(rf"<{type(result).__name__}\b.*>", line), line
    assert len(line) < 500


@pytest.mark.parametrize("result", RESULTS, ids=lambda one: type(one).__name__)
def test_a_result_is_a_page_in_a_notebook(result: Any) -> None:
    page = result._repr_html_()
    assert page.lstrip().startswith("<!doctype html>")
    assert "</html>" in page


def test_what_a_program_goes_on_using_prints_as_one_readable_line() -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    server = torchwise.serve_batched(net, max_batch=2)
    server(torch.ones(1, 2))
    server.close()
    module = TunedModule(Calls("Net", "Net", lambda: None), RecordedModule("Net", "module", 3, 1.0, notes=("why",)))
    shown = {
        "TrainStep of Linear by SGD": torchwise.TrainStep(net, torch.nn.MSELoss(), optimizer),
        "PlannedForward of Linear: <Statistics: 0 calls": training.PlannedForward(torch.nn.Linear(2, 2)),
        "CompileManager: no components": torchwise.CompileManager(),
        "CapturedStep lose: 0 graphs": torchwise.captured_step(lose),
        "TunedModule Net: as written, why": module,
        "BatchServer, closed: 1 requests in 1 batches, p99 ": server,
        "BatchStatistics: 1 requests in 1 batches, p99 ": server.statistics,
        "OptimizedFunction lose, plan: eager": torchwise.apply(
            lose, make_decision(lose, torchwise.EAGER, torch.ones(2))
        ),
        "Component lose: <ComponentStatistics: ": Component("lose", lose, torchwise.CompileConfig.of("development")),
    }
    for beginning, one in shown.items():
        assert repr(one).startswith(f"<{beginning}"), repr(one)
        assert len(repr(one)) < 200


def lose(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def test_the_walk_finds_results_of_each_package() -> None:
    found = list_result_types()
    assert {"Study", "Decision", "Trial", "Explanation", "Bisection", "BatchFit", "TunedProgram"} <= found.keys()
    assert {"Info", "Choice", "VerifiedPadding", "Lock", "ComponentStatistics"} <= found.keys()


def test_a_record_without_a_report_is_shown_by_its_values() -> None:
    page = render_view(ComponentStatistics(plan="inductor", optimized=31, failures={"ValueError": 2}))
    assert "31" in page
    assert "ValueError: 2" in page
