"""Where a fault enters: the steps of the search, their observations, and the result."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from torchwise.environment import Environment
from torchwise.former_names import renamed_fields
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.codec import Document
from torchwise.records.statistics import Count, Positive, Seconds

Stage = Literal["eager", "dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor", "plan"]
"""How far a call goes: the model itself, then each stage of `torch.compile` with all before it, or one of our plans."""


class Symptom(StrEnum):
    """Symptom of a fault. A crash is a process that died or a call that raised.

    Two members are no fault: the answer is right, or it cannot be compared, so that it is unknown.
    """

    NONE = "none"
    NOT_COMPARABLE = "not comparable"
    WRONG = "wrong"
    NAN = "nan"
    CRASH = "crash"
    HANG = "hang"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation of one step. Eager itself was right in the same process.

    The kind is the signal or exception of a crash. Two crashes of different kinds are two faults.
    """

    symptom: Symptom
    detail: str = ""
    kind: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether a fault is certain."""
        return self.symptom not in (Symptom.NONE, Symptom.NOT_COMPARABLE)

    def is_same(self, other: Observation) -> bool:
        """Whether both are the same fault, as far as their symptoms show."""
        return (self.symptom, self.kind) == (other.symptom, other.kind)


@renamed_fields(observation="sighting")
@dataclass(frozen=True, slots=True)
class Step:
    """One step of the search, in a process of its own."""

    what: str
    observation: Observation
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of the fault within its stage.

    Attributes:
        kind: "option", "pass", "decomposition", "lowering" or "choice" (of a plan).
        name: the option with the value that fixes the fault, the pass, or the operator.
        place: which application of a pass, decomposition or lowering it is, from 1, or None if there is no count.
        of: how many applications there are.
        workaround: options of `torch.compile` with which the fault was observed to be gone.
    """

    kind: Literal["option", "pass", "decomposition", "lowering", "choice"]
    name: str
    detail: str = ""
    place: Positive | None = None
    of: Count = 0
    workaround: dict[str, bool | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a graph that Dynamo captured.

    Attributes:
        operator: its operator, such as "torch.add".
        code: the whole operation, such as "add = torch.add(x, mask)".
        source: file and line that it comes from, if known.
    """

    name: str
    operator: str
    code: str
    source: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The smallest part of a graph that was found to show the fault: the fault is gone without any one operation.

    Attributes:
        graph: index of the captured graph, from 0.
        of: number of operations in the whole graph.
        complete: whether the search for it came to its end. The budget may cut it short.
    """

    graph: Count
    operations: tuple[Operation, ...]
    of: Count
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Repro:
    """A program that shows the fault.

    Attributes:
        file: its path. Its inputs are in the same folder.
        confirmed: whether it was run in a fresh process, and showed the fault.
        standalone: whether it needs torch alone. Otherwise it loads the target, or Torchwise for its plan.
    """

    file: str
    confirmed: bool
    standalone: bool
    output: str = ""


@renamed_fields(observation="sighting", cause="culprit")
@dataclass(frozen=True, slots=True)
class Bisection(Document):
    """Where a fault enters.

    Attributes:
        workload: the workload under search.
        environment: machine and software.
        plan: the plan that was run. `EAGER` stands for plain `torch.compile`.
        what: the symptom searched for, or "auto" for any symptom but "slow".
        observation: the fault, or that there is none, or that the answers cannot be compared.
        stage: the stage at which it enters, or None if there is no fault.
        cause: the cause within the stage, or None if it is unknown.
        subgraph: the smallest part that shows the fault, if there is a graph to reduce.
        repro: a program that shows the fault.
        steps: every step, in order.
        notes: questions left open, and why.
        seconds: total wall time.
    """

    workload: WorkloadSpec
    environment: Environment
    observation: Observation
    plan: Plan = EAGER
    what: str = "auto"
    stage: Stage | None = None
    cause: Cause | None = None
    subgraph: Subgraph | None = None
    repro: Repro | None = None
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Seconds = 0.0
    schema: str = "torchwise.bisection/1"

    def __repr__(self) -> str:
        at = f" at stage {self.stage}" if self.stage else ""
        return f"<Bisection of {self.workload.target}: {self.observation.symptom}{at}, {len(self.steps)} steps>"

    @property
    def found(self) -> bool:
        """Whether a fault was found."""
        return self.observation.is_fault

    @property
    def is_comparable(self) -> bool:
        """Whether the search had a result. If not, it is unknown whether there is a fault."""
        return self.observation.symptom is not Symptom.NOT_COMPARABLE
