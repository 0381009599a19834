"""The worker's side of saving: compile by the plan, through the same layers that will answer, and start once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from torchwise._torch import cpu_isa_cache, dynamo
from torchwise.errors import UnsupportedError
from torchwise.records import Decision
from torchwise.trial import DerivedJob, Job


@dataclass(frozen=True, slots=True)
class Build(DerivedJob):
    """Instructions for a worker.

    Attributes:
        step: "compile" into the job's empty folder, or "start" from the results in it.
        job: workload, settings and folder.
        decision: as JSON.
        checks: for the start, the known results about the instruction sets.
    """

    step: Literal["compile", "start"]
    job: Job
    decision: str
    checks: dict[str, bool] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return f"torchwise.artifact.build:{self.step}"


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A worker's answer.

    Attributes:
        seconds: time of the first calls beyond steady ones.
        checks: results of the instruction sets' checks.
        compiled: number of graphs that Inductor compiled because it did not find them.
    """

    seconds: float
    checks: dict[str, bool]
    compiled: int


def compile(build: Build, stage: Callable[[str], None]) -> BuildResult:
    """Compile everything that the decision's plan needs for the workload's examples."""
    stage("compile")
    with cpu_isa_cache.recording() as checks:
        seconds = _first_calls(build)
    return BuildResult(seconds, checks, _count_compiled_graphs())


def start(build: Build, stage: Callable[[str], None]) -> BuildResult:
    """Answer the same calls in this fresh process."""
    stage("warm start")
    cpu_isa_cache.replay(build.checks)
    return BuildResult(_first_calls(build), build.checks, _count_compiled_graphs())


def _first_calls(build: Build) -> float:
    """Make the first calls, and return the seconds they took beyond steady ones.

    Raises:
        UnsupportedError: the plan did not answer, and why.
    """
    from torchwise.runtime import OptimizedFunction, OptimizedModule
    from torchwise.trial.harness import Harness

    harness, decision = Harness(build.job), Decision.from_json(build.decision)
    call = harness.workload.call  # the caller has checked that the decision holds for it here
    fast: OptimizedModule | OptimizedFunction
    fast = OptimizedModule(call, decision) if isinstance(call, torch.nn.Module) else OptimizedFunction(call, decision)
    with harness.gradients():
        seconds = harness.first_calls(harness.runners(fast))
    if sentences := fast.statistics.sentences:
        raise UnsupportedError(f"the plan does not answer these examples: {next(iter(sentences.values()))}")
    return seconds


def _count_compiled_graphs() -> int:
    counts = dynamo.get_counters("inductor")
    return counts.get("fxgraph_cache_miss", 0) + counts.get("fxgraph_cache_bypass", 0)
