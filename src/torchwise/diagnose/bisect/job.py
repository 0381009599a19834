"""One request to bisect, and the jobs and results of its workers: plain data, which loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torchwise.errors import InputError, is_positive
from torchwise.plan import EAGER, Plan, check_is_plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.bisection import Observation, Operation, Stage, Symptom
from torchwise.trial import DerivedJob, Job, ProcessSettings

LIMIT_S = 300.0
"""Seconds for one probe: anything that compiles for longer counts as a hang."""
AUTO = "auto"
MARKS = {
    Symptom.WRONG: "FAULT: value",
    Symptom.NAN: "FAULT: value",
    Symptom.CRASH: "FAULT: the compiled call raises",
    Symptom.HANG: "Timeout (",  # printed by Python's faulthandler
    Symptom.SLOW: "FAULT: a call takes",
}
"""Beginning of the line that a repro prints for each fault.

A program that cannot even be imported also exits with 1, and prints no such line.
"""
_NO_FAULTS = (Symptom.NONE, Symptom.NOT_COMPARABLE)
Task = Literal["probe:run_probe", "capture:list_graphs", "repro:write"]
Option = bool | int | str


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """One request to bisect.

    Attributes:
        workload: the model and its inputs.
        what: the symptom to find, or "auto" for any of them except "slow".
        plan: a plan of Torchwise to bisect, or `EAGER` for plain `torch.compile`.
        limit_s: seconds after which one probe is ended, and counts as a hang.
        budget_s: seconds after which no further probe starts, or None for no limit.
        repro: .py file to write the repro to, or None for no repro.
        source: file with a live Python model, written by this very run, or None to load the target.
        settings: PyTorch's settings in the user's process, or None for its defaults.
    """

    workload: WorkloadSpec
    what: str = AUTO
    plan: Plan = EAGER
    limit_s: float = LIMIT_S
    budget_s: float | None = None
    repro: str | None = None
    source: str | None = None
    settings: ProcessSettings | None = None

    def __post_init__(self) -> None:
        known = [AUTO, *(symptom.value for symptom in Symptom if symptom not in _NO_FAULTS)]
        if self.what not in known:
            raise InputError(f"what is {self.what!r}, but must be one of {', '.join(known)}")
        check_is_plan(self.plan)
        for name in ("limit_s", "budget_s"):
            value = getattr(self, name)
            if value is not None and not is_positive(value):
                raise InputError(f"{name.removesuffix('_s')} is {value!r} s, but must be above 0")
        if self.repro is not None and not self.repro.endswith(".py"):
            raise InputError(f"the repro is {self.repro!r}, but must be a .py file")

    def wants(self, symptom: Symptom) -> bool:
        """Return whether the user is looking for this symptom.

        A slow-down counts only on request: a small function is slow under any compiler.
        """
        return self.what == symptom.value or (self.what == AUTO and symptom not in (*_NO_FAULTS, Symptom.SLOW))

    @property
    def compares(self) -> bool:
        """Whether the answers must be compared to recognise the symptom.

        A crash needs no comparison.
        """
        return self.what in (AUTO, Symptom.WRONG, Symptom.NAN)


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

    FUNCTION = "torchwise.diagnose.bisect.{0.to}"
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
