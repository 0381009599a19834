"""What the plain model is like: looked at once per study, in a worker, before any candidate."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchwise.records.bounds import Amount, Count, Positive, Seconds
from torchwise.records.measurement import Measurement


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one training step works on.

    Attributes:
        samples: rows of the batch.
        tokens: elements of the batch where it holds whole numbers; None where it does not.
        flops: floating-point operations of its matrix products and convolutions, forward and backward; None where they
            could not be counted.
        peak_flops: such operations a second that this device does at its best, at the step's own precision.
    """

    samples: Positive
    tokens: Count | None
    flops: Amount | None
    peak_flops: Amount | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the plain model is like.

    Attributes:
        identity: of the workload, as `torchwise.workload.identity.identity` gives it.
        structure: of the model alone, as `torchwise.workload.identity.structure` gives it.
        description: the model in a line, such as "Sequential, 25.6 M parameters, float32".
        inputs: one line per example, as `describe_example` gives it.
        traits: what choices may need, and what proofs must know: "module", "floating", "float32", "gemm", "conv",
            "repeated_blocks", "several_shapes", "stochastic", "writes_inputs", "complex", "repeats", "long" (of
            very many operators), "rnn", "patches", "short_rows" (points of a few coordinates are read again and again),
            "static_form", "dependent_launch" (the GPU can start a kernel before the one ahead of it has ended),
            "grows" (a call gives the state that it keeps another shape), "prints" (or logs), "questions" (Python asks
            the GPU yes or no, or how many), "numbers" (it reads floating-point numbers from it), "short_calls" and
            "contended_cores" (on a CPU: threads of one operator wait for a core; `measurement.cores` is the evidence);
            of a training step "training_step", "fusable", "foreachable", "divisible_by_2" and "divisible_by_4".
        measurement: eager against itself; its speed-up interval should hold 1 and shows the machine's noise.
        first_call_s: seconds of the first call beyond a steady one.
        peak_memory: bytes at the peak of one call above what was held before it; None where not measurable.
        shares: share of eager's time by kind of work, from PyTorch's profiler: "gemm" of the operators' time,
            convolutions included; "conv" of it; "launch" of the call, in which no kernel runs.
        operators: how many a call runs, of the examples the most; None where they could not be counted.
        notes: what the user should know, such as a model left in training mode.
        work: of one step, where a training step is tuned.
        structure_details: what the structure is made of, as decisions keep it.
    """

    identity: str
    structure: str
    description: str
    inputs: tuple[str, ...]
    traits: frozenset[str]
    measurement: Measurement
    first_call_s: Seconds
    peak_memory: Count | None = None
    shares: dict[str, Amount] = field(default_factory=dict)
    operators: Count | None = None
    notes: tuple[str, ...] = ()
    work: StepWork | None = None
    structure_details: str = ""

    @property
    def time_parts(self) -> dict[str, float]:
        """Parts of eager's call by kind of work, the largest first: unlike `shares`, no two of them overlap."""
        idle, conv = self.shares.get("launch", 0.0), self.shares.get("conv", 0.0)
        parts = {
            name: share if name == "launch" else (max(share - conv, 0.0) if name == "gemm" else share) * (1 - idle)
            for name, share in self.shares.items()
        }
        return dict(sorted(parts.items(), key=lambda item: -item[1]))
