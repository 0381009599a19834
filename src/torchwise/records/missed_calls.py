"""The calls of a program that no plan was verified on, over its runs by stored plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchwise.records.codec import Document
from torchwise.records.recording import Kept
from torchwise.records.statistics import Amount, Count, Seconds


@dataclass(frozen=True, slots=True)
class MissedKind:
    """Calls of one kind that the original answered, as no plan was verified on their inputs.

    Attributes:
        inputs: dtype and shape of each tensor, and other values, in a line.
        form: the whole form of the inputs, by which the same kind is known again in another run.
        calls: the number of calls, over all runs.
        seconds: their time, estimated from those that were looked at.
        runs: the number of runs that these calls are of, those without such a call included.
        mode: "inference", or "training" if gradients were on and something needed them.
        training: whether the module was in training mode, which is no matter of gradients.
        autocast: the dtype of the autocast around the calls, or empty.
        kept: whether the first inputs were kept as they were, as stand-ins with equal statistics, or not at all.
    """

    inputs: str
    form: str
    calls: Amount
    seconds: Seconds
    runs: Count = 1
    mode: Literal["inference", "training"] = "inference"
    training: bool = False
    autocast: str = ""
    kept: Kept = "real"

    @property
    def identity(self) -> tuple[str, str, bool, str]:
        """The key that tells it from other kinds."""
        return self.form, self.mode, self.training, self.autocast

    @property
    def calls_per_run(self) -> float:
        """The calls to expect in one run."""
        return self.calls / max(self.runs, 1)


@dataclass(frozen=True, slots=True)
class MissedModule:
    """Such calls of a module, and of all that are like it.

    Attributes:
        name: the name of its class, or of the function.
        structure: identifies its code and the shapes of its weights.
        runs: the number of runs in which it had a plan.
        kinds: the kinds of calls, the one with the most seconds first.
        others: calls of further kinds, for which there was no room.
    """

    name: str
    structure: str
    runs: Count
    kinds: tuple[MissedKind, ...] = ()
    others: Count = 0

    @property
    def key(self) -> tuple[str, str]:
        """The key that tells it from other modules."""
        return self.name, self.structure


@dataclass(frozen=True, slots=True)
class MissedCalls(Document):
    """All such calls of a program.

    Attributes:
        program: its name.
    """

    program: str
    modules: tuple[MissedModule, ...] = ()
    schema: str = "torchwise.missed-calls/1"

    def __repr__(self) -> str:
        count = sum(len(module.kinds) for module in self.modules)
        return f"<MissedCalls of {self.program}: {count} kind{'s' * (count != 1)}>"
