"""One request to bisect, the jobs of its workers, and the parent's side of a probe, which ends in an observation."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from torchwise.command_start import budget_start
from torchwise.errors import BaselineError, InputError, TorchwiseError, UnsupportedError, is_positive
from torchwise.plan import EAGER, Plan, check_is_plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind, WorkerStage
from torchwise.records.bisection import Observation, Operation, Stage, Step, Symptom
from torchwise.records.listener import Listener
from torchwise.trial import Budget, DerivedJob, Job, Launcher, Limits, ProcessSettings, Stopwatch, ask_worker
from torchwise.trial.error_origin import make_budget_error, make_failure_error

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
"""Beginning of the line that a repro prints for each fault. A program that cannot be imported prints no such line."""
PATIENCE = 3.0
"""Multiple of the longest finished probe after which a probe for a known hang is ended."""
MIN_PATIENCE_S = 20.0
REPRO_SHARE = 0.1
"""Share of the budget that is left for the repro when no further probe starts."""
BEFORE = (WorkerStage.START, WorkerStage.LOAD, WorkerStage.EAGER, WorkerStage.CAPTURE)
"""Stages of a worker before the probed code runs."""
_NAMES = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Failed|Unsupported)\b")
_NO_FAULTS = (Symptom.NONE, Symptom.NOT_COMPARABLE)
Task = Literal["probe:run_probe", "probe:list_graphs", "repro:write"]
Option = bool | int | str
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """One request to bisect.

    Attributes:
        workload: the model and its inputs.
        what: the symptom to find, or "auto" for any of them except "slow".
        plan: a plan of Torchwise to bisect, or `EAGER` for plain `torch.compile`.
        limit_s: seconds after which one probe is ended, and counts as a hang.
        budget_s: seconds of the whole search, or None for no limit. The last tenth is for the repro.
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
        """Whether the answers must be compared to recognise the symptom. A crash needs no comparison."""
        return self.what in (AUTO, Symptom.WRONG, Symptom.NAN)


@dataclass(frozen=True, slots=True)
class Part:
    """Operations of a captured graph, by name. The values of its other operations become inputs of the part."""

    graph: int
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe(DerivedJob):
    """One job for a worker: to probe, to list the graphs, or to write a repro.

    Attributes:
        stage: the last stage of PyTorch's compiler that a call passes through.
        options: options of Inductor, on top of the plan's own.
        most: by kind of pass, the maximum number of applications. Kinds that are not named have no maximum.
        part: probe this part of a graph alone, or None for the whole model.
        timed: whether a right answer is timed against eager as well.
        stochastic: whether the model draws random numbers. Inductor then draws the same numbers as eager.
        file: for a repro, the file to write.
        about: for a repro, the lines of its docstring, which describe the fault.
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
    """The observed symptom, the applications of each kind of pass, and whether the model draws random numbers."""

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


class ProbeRunner:
    """Runs probes, one after the other, and keeps their observations.

    Attributes:
        fault: the fault to find, once it is known.
        notes: open questions, with the reason.
        spent: whether the budget has ended the search.
    """

    def __init__(self, request: BisectRequest, launcher: Launcher, listener: Listener, job: Job) -> None:
        self.listener = listener
        self.fault = Observation(Symptom.NONE)
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.spent = False
        self._request = request
        self._budget = Budget(request.budget_s or math.inf, Stopwatch(listener.stage, budget_start()))
        self._launcher = self._budget.limit(launcher)
        self._job = job
        self._stochastic = False

    def begin(self) -> None:
        """Probe the model itself."""
        result = self.run_probe("the original model", self.make_probe("eager", self._job.plan))
        if result.observation.is_fault:
            raise BaselineError(
                f"the original model ends in a {result.observation.symptom}: {result.observation.detail}"
            )
        self._stochastic = result.stochastic

    def make_probe(self, stage: Stage, plan: Plan) -> Probe:
        """Return a probe of the whole model."""
        return Probe(replace(self._job, plan=plan), stage, stochastic=self._stochastic, timed=self._is_timed)

    def is_requested(self, observation: Observation) -> bool:
        """Return whether the user is looking for this symptom."""
        return self._request.wants(observation.symptom)

    def is_gone(self, observation: Observation) -> bool:
        """Return whether this shows that the known fault is gone. For a wrong answer, only a compared answer does."""
        compared = self.fault.symptom in (Symptom.WRONG, Symptom.NAN)
        return observation.symptom is Symptom.NONE or (not compared and not observation.is_fault)

    def run_probe(self, name: str, probe: Probe) -> ProbeResult:
        """Run one probe, and raise if the target, the original model or this torch is at fault."""
        self.listener.start_step(name)
        start = time.monotonic()
        answer = self._ask(replace(probe, timed=self._is_timed), ProbeResult)
        if isinstance(answer, Failure) and answer.kind is FailureKind.OUT_OF_BUDGET:
            self._note_spent()
            raise make_budget_error(answer, f"{name!r} is not probed")
        result = _classify_failure(answer) if isinstance(answer, Failure) else answer
        step = Step(name, result.observation, time.monotonic() - start)
        self.steps.append(step)
        self.listener.finish_probe(step)
        return result

    def shows(self, name: str, probe: Probe) -> bool:
        """Return whether a probe shows the known fault: not if it cannot run, or if the budget is spent."""
        result = self.try_probe(name, probe)
        return result is not None and result.observation.is_same(self.fault)

    def try_probe(self, name: str, probe: Probe) -> ProbeResult | None:
        """Run one probe if the budget allows. Return None if the subject cannot run by itself."""
        if self._is_out_of_time():
            return None
        try:
            return self.run_probe(name, probe)
        except TorchwiseError:  # a part may fail or not be compiled, and an option may be missing
            return None

    def run_task(self, name: str, probe: Probe, kind: type[T]) -> T | Failure:
        """Have a worker do something other than a probe, and return its answer of this kind."""
        self.listener.start_step(name)
        return self._ask(probe, kind)

    def note(self, text: str) -> None:
        """Keep and report an open question."""
        self.notes.append(text)
        self.listener.note(text)

    @property
    def _is_timed(self) -> bool:
        """Whether to time: yes, until the fault is known to be of another kind."""
        searches_slow = self._request.wants(Symptom.SLOW)
        return searches_slow and self.fault.symptom in (Symptom.NONE, Symptom.SLOW)

    def _ask(self, probe: Probe, kind: type[T]) -> T | Failure:
        return ask_worker(self._launcher, probe, kind, Limits.from_free_memory(self._limit()), self._budget.spent.stage)

    def _limit(self) -> float:
        """Return the seconds for a probe: after a known hang, the next probes get a shorter limit."""
        limit = self._request.limit_s
        ended = [step.seconds for step in self.steps if step.observation.symptom is not Symptom.HANG]
        if self.fault.symptom is not Symptom.HANG or not ended:
            return limit
        return min(limit, max(MIN_PATIENCE_S, PATIENCE * max(ended)))

    def _is_out_of_time(self) -> bool:
        if self._budget.left_s <= REPRO_SHARE * (self._request.budget_s or 0.0):
            self._note_spent()
        return self.spent

    def _note_spent(self) -> None:
        if not self.spent:
            self.spent = True
            self.note("the budget is spent: the search stopped here, and the result is incomplete")


def _classify_failure(failure: Failure) -> ProbeResult:
    """Turn a failed worker into an observation."""
    if failure.kind is FailureKind.UNSUPPORTED:
        raise UnsupportedError(failure.message)
    if failure.stage in BEFORE:
        raise make_failure_error(failure)
    if failure.kind is FailureKind.TIMED_OUT:
        return ProbeResult(Observation(Symptom.HANG, failure.message))
    return ProbeResult(Observation(Symptom.CRASH, str(failure), _kind(failure)))


def _kind(failure: Failure) -> str:
    """Return the signal, or the names of the errors in a message, including the errors that wrap others."""
    if failure.kind is FailureKind.RAISED:
        return ", ".join(dict.fromkeys(_NAMES.findall(failure.message))) or "error"
    return failure.message if failure.kind is FailureKind.DIED else failure.kind.value
