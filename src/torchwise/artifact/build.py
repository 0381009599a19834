"""The worker's side of saving: compile by the plan, through the same layers that will answer, and start once more.

Also here: Inductor's and Triton's folders of compiled code. Files are named by their source, so that folders can merge.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from torchwise._torch import cpu_isa_cache, dynamo, inductor
from torchwise.artifact.package import put
from torchwise.errors import InputError, UnsupportedError
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


FEATURE = "an artifact"
LEFT_OUT = (".lock", ".tmp")


def collect(folder: Path) -> dict[str, bytes]:
    """Return the files of compiled code in a worker's `Job.cache_dir` by their names in an artifact."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.suffix not in LEFT_OUT:
            place = file.relative_to(folder)
            found[str(place) if place.parts[0] == "triton" else f"inductor/{place}"] = file.read_bytes()
    return found


def place(code: Mapping[str, bytes]) -> int:
    """Put compiled code into this process's cache folders, and return how many files were not there yet.

    Existing files stay: a file of the same name was made from the same source.

    Raises:
        InputError: a file cannot be written. Those that were written are whole.
        UnsupportedError: this torch keeps its code elsewhere.
    """
    folders = {"inductor": Path(inductor.CACHE_DIR.get(FEATURE)()), "triton": _triton()}
    new = 0
    for key, data in code.items():
        kind, _, rest = key.partition("/")
        file = folders[kind] / rest
        if file.exists():
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{file.parent} cannot be made: {error.strerror}") from None
        put(file, data)
        new += 1
    return new


def _triton() -> Path:
    """Return Triton's folder. By Inductor's rule each GPU has one, and this is that of the first."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or inductor.TRITON_CACHE_DIR.get(FEATURE)(0))
