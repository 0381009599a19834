"""A recording of a program's calls: which modules took which share of its time, and with which inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchwise.records.answer import Answer
from torchwise.records.codec import Document
from torchwise.records.statistics import Amount, Count, Interval, Seconds

Kept = Literal["real", "stand-in", "none"]


@dataclass(frozen=True, slots=True)
class RecordedInputs:
    """Calls of one module with inputs of one signature.

    Attributes:
        inputs: dtype and shape of each tensor, and other values, in a line.
        seconds: time of these calls, estimated from those that were looked at.
        mode: "inference", or "training" if gradients were on and something needed them.
        autocast: the dtype of the autocast around the calls, or empty.
        kept: whether the first inputs were kept as they were, as stand-ins with equal statistics, or not at all.
    """

    inputs: str
    calls: Count
    seconds: Seconds
    mode: Literal["inference", "training"] = "inference"
    autocast: str = ""
    kept: Kept = "real"


@dataclass(frozen=True, slots=True)
class RecordedModule:
    """The calls of one module or compiled function that are no part of another one's.

    Attributes:
        name: its class or function, with "#2" and so on for further ones of the same name.
        seconds: time of all its calls.
        inputs: each signature, the one with the most seconds first.
        others: calls with further signatures, for which there was no room.
        plan: the plan it runs by, or None if it is not tuned.
        speedup: of that plan over eager.
        answer: of its search, or None if it is not tuned.
        expected_calls: calls that the plan is meant for: those with inputs that it was tuned on.
        net_saving_s: seconds that it is expected to save over those calls, minus the time of compiling.
        notes: what the reader must know, such as why it is not tuned.
    """

    name: str
    kind: Literal["module", "function"]
    calls: Count
    seconds: Seconds
    parameters: Count = 0
    inputs: tuple[RecordedInputs, ...] = ()
    others: Count = 0
    plan: str | None = None
    speedup: Interval | None = None
    answer: Answer | None = None
    expected_calls: Count = 0
    net_saving_s: float = 0.0
    notes: tuple[str, ...] = ()

    def saved_s(self, speedup: float) -> float:
        """Return the seconds that a speed-up saves in a run like the recorded one."""
        return self.seconds * (1 - 1 / speedup)


@dataclass(frozen=True, slots=True)
class Recording(Document):
    """All recorded calls of a program.

    Attributes:
        program: its name.
        seconds: wall-clock time of the recording.
        modules: those with the most seconds first.
        overhead_s: processor time for looking at inputs.
        kept_bytes: memory of the inputs that were kept.
        expected_speedup: the speed-up to expect of modules without a decision, or None if nothing tells.
        expected_from: the number of models tuned on this machine that tell it.
    """

    program: str
    seconds: Seconds
    modules: tuple[RecordedModule, ...] = ()
    overhead_s: Seconds = 0.0
    kept_bytes: Amount = 0.0
    notes: tuple[str, ...] = ()
    expected_speedup: float | None = None
    expected_from: Count = 0
    schema: str = "torchwise.recording/1"

    def __repr__(self) -> str:
        count = len(self.modules)
        return f"<Recording of {self.program}: {count} module{'s' * (count != 1)} in {self.seconds:.3g} s>"

    def share(self, module: RecordedModule) -> float:
        """Return the share of a module's calls in the whole time, at most 1."""
        return min(module.seconds / self.seconds, 1.0) if self.seconds > 0 else 0.0
