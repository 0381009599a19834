"""Where a fault enters: what was looked at, what was seen, and what it came down to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from torchwise.environment import Environment
from torchwise.plan import EAGER, Plan
from torchwise.records.bounds import Count, Positive, Seconds
from torchwise.records.codec import Document
from torchwise.workload import WorkloadSpec

SCHEMA = "torchwise.bisection/1"

Stage = Literal["eager", "dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor", "plan"]
"""How far a call goes: the model itself, then each stage of `torch.compile` with all before it, or a plan of ours."""


class Symptom(StrEnum):
    """What a fault looks like. A crash is a process that died or a call that raised.

    Two of them are none: the answer is right, or it cannot be compared, so that nobody knows.
    """

    NONE = "none"
    NOT_COMPARABLE = "not comparable"
    WRONG = "wrong"
    NAN = "nan"
    CRASH = "crash"
    HANG = "hang"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one look found.

    Attributes:
        symptom: of the candidate; eager itself was right in the same process.
        detail: a sentence with the figures.
        kind: of a crash, its signal or exception: two crashes of unlike kinds are two faults.
    """

    symptom: Symptom
    detail: str = ""
    kind: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether something is known to be wrong."""
        return self.symptom not in (Symptom.NONE, Symptom.NOT_COMPARABLE)

    def is_same(self, other: Sighting) -> bool:
        """Whether both are the same fault, as far as can be told from outside."""
        return (self.symptom, self.kind) == (other.symptom, other.kind)


@dataclass(frozen=True, slots=True)
class Step:
    """One look, in a process of its own.

    Attributes:
        what: what was tried, in words.
        sighting: what was seen.
        seconds: wall time, the worker's start included.
    """

    what: str
    sighting: Sighting
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Culprit:
    """What brings the fault within its stage.

    Attributes:
        kind: "option", "pass", "decomposition", "lowering" or "choice" (of a plan).
        name: of the option with its mending value, of the pass, or the operator in question.
        detail: how that was found.
        place: which application of a pass, decomposition or lowering it is, from 1; None where there is no count.
        of: how many applications there are.
        workaround: options of `torch.compile` under which the fault was seen to be gone.
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
        name: of its value in the graph.
        operator: such as "torch.add".
        code: the whole operation, such as "add = torch.add(x, mask)".
        source: file and line that it comes from, where known.
        line: the text of that line.
    """

    name: str
    operator: str
    code: str
    source: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """The smallest part of a graph that was found to show the fault: without any one of its operations it is gone.

    Attributes:
        graph: which of the captured graphs, from 0.
        operations: of the part.
        of: operations of the whole graph.
        complete: whether the search for it came to its end, or was cut short by the budget.
    """

    graph: Count
    operations: tuple[Operation, ...]
    of: Count
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Repro:
    """A program that shows the fault.

    Attributes:
        file: where it lies; its inputs lie beside it.
        confirmed: whether it was run in a fresh process, and showed the fault.
        standalone: whether it needs torch alone. Otherwise it loads the target, or Torchwise for its plan.
        output: the end of what it printed.
    """

    file: str
    confirmed: bool
    standalone: bool
    output: str = ""


@dataclass(frozen=True, slots=True)
class Bisection(Document):
    """Where a fault enters.

    Attributes:
        workload: what was looked at.
        environment: where.
        plan: what was run; `EAGER` stands for plain `torch.compile`.
        what: the symptom that was looked for, or "auto" for whichever there is but "slow".
        sighting: the fault, or that there is none, or that the answers cannot be compared.
        stage: at which it enters; None where there is no fault.
        culprit: what brings it within the stage, where that could be told.
        subgraph: the smallest part that shows it, where there is a graph to reduce.
        repro: a program that shows it.
        steps: every look, in order.
        notes: what could not be told, and why.
        seconds: wall time of all.
    """

    workload: WorkloadSpec
    environment: Environment
    sighting: Sighting
    plan: Plan = EAGER
    what: str = "auto"
    stage: Stage | None = None
    culprit: Culprit | None = None
    subgraph: Subgraph | None = None
    repro: Repro | None = None
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Seconds = 0.0
    schema: str = SCHEMA

    @property
    def found(self) -> bool:
        """Whether a fault was found."""
        return self.sighting.is_fault

    @property
    def is_comparable(self) -> bool:
        """Whether what was looked for could be told; where it could not, nobody knows whether there is a fault."""
        return self.sighting.symptom is not Symptom.NOT_COMPARABLE
