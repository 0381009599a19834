"""Properties of the plain model: inspected once per study, in a worker, before any candidate."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchwise.plan import Trait
from torchwise.records.measurement import Measurement
from torchwise.records.statistics import Amount, Count, Positive, Seconds


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one training step.

    Attributes:
        samples: rows of the batch.
        tokens: elements of the batch if it holds whole numbers, or None if it does not.
        flops: floating-point operations of its matrix products and convolutions, forward and backward, or None if they
            could not be counted.
        peak_flops: such operations per second that this device does at its best, at the step's own precision.
    """

    samples: Positive
    tokens: Count | None
    flops: Amount | None
    peak_flops: Amount | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """Properties of the plain model.

    Attributes:
        identity: of the workload, as `torchwise.workload.identity.identity` gives it.
        structure: of the model alone, as `torchwise.workload.identity.structure` gives it.
        description: the model in a line, such as "Sequential, 25.6 M parameters, float32".
        inputs: one line per example, as `describe_example` gives it.
        traits: traits that choices may need, and that verification must know. Of `Trait.CONTENDED_CORES`,
            `measurement.cores` is the evidence.
        measurement: eager against itself. Its speed-up interval should hold 1, and shows the machine's noise.
        first_call_s: seconds of the first call beyond a steady one.
        peak_memory: bytes at the peak of one call above those held before it, or None if not measurable.
        shares: share of eager's time by kind of work, from PyTorch's profiler. "gemm" is a share of the operators'
            time, convolutions included, and "conv" too. "launch" is the share of the call in which no kernel runs.
        operators: number of operators in a call, the most over the examples, or None if they could not be counted.
        notes: notes for the user, such as on a model left in training mode.
        work: of one step, if a training step is tuned.
        structure_details: the parts of the structure, as decisions keep them.
    """

    identity: str
    structure: str
    description: str
    inputs: tuple[str, ...]
    traits: frozenset[Trait]
    measurement: Measurement
    first_call_s: Seconds
    peak_memory: Count | None = None
    shares: dict[str, Amount] = field(default_factory=dict)
    operators: Count | None = None
    notes: tuple[str, ...] = ()
    work: StepWork | None = None
    structure_details: str = ""

    @property
    def time_by_kind(self) -> dict[str, float]:
        """Parts of eager's call by kind of work, the largest first. Unlike `shares`, no two of them overlap."""
        idle, conv = self.shares.get("launch", 0.0), self.shares.get("conv", 0.0)
        parts = {
            name: share if name == "launch" else (max(share - conv, 0.0) if name == "gemm" else share) * (1 - idle)
            for name, share in self.shares.items()
        }
        return dict(sorted(parts.items(), key=lambda item: -item[1]))
