"""The jobs and results of a bisection's workers: plain data, which loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torchwise.records.bisection import Observation, Operation, Stage
from torchwise.trial import DerivedJob, Job

Task = Literal["probe:run_probe", "capture:list_graphs", "repro:write"]
Option = bool | int | str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a graph that Dynamo captured.

    Attributes:
        graph: index of the graph, from 0.
        operations: names of the kept operations. The values of the other operations become inputs of the part.
    """

    graph: int
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe(DerivedJob):
    """One job for a worker.

    Attributes:
        job: workload, plan, settings, caches and variables.
        stage: the last stage of PyTorch's compiler that a call passes through.
        options: options of Inductor, on top of the plan's own.
        most: by kind of pass, the maximum number of applications. Kinds that are not named have no maximum.
        part: probe this part of a graph alone, or None for the whole model.
        timed: whether a right answer is timed against eager as well.
        stochastic: whether the model draws random numbers. Inductor then draws the same numbers as eager.
        to: probe, list the graphs, or write a repro.
        file: for a repro, the file to write.
        about: for a repro, the lines of its docstring, which describe the fault.
        fault: for a repro, the fault.
        to_load: for a repro, whether it loads the target before its part, because the target's code causes the fault.
    """

    job: Job
    stage: Stage
    options: dict[str, Option] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    part: Part | None = None
    timed: bool = False
    stochastic: bool = False
    to: Task = "probe:run_probe"
    file: str = ""
    about: tuple[str, ...] = ()
    fault: Observation | None = None
    to_load: bool = False

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return f"torchwise.diagnose.bisect.{self.to}"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe.

    Attributes:
        observation: the observed symptom.
        applied: for each kind of pass, the applications, in order.
        stochastic: whether the model draws random numbers.
    """

    observation: Observation
    applied: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stochastic: bool = False


@dataclass(frozen=True, slots=True)
class Graphs:
    """The operations of every graph that Dynamo captured."""

    graphs: tuple[tuple[Operation, ...], ...]


@dataclass(frozen=True, slots=True)
class Written:
    """Whether a repro is a program that needs only torch."""

    standalone: bool
