"""The user's request as pure data: the model, the number of calls, the device and the objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torchwise.errors import WorkloadError, is_count, is_positive

Mode = Literal["inference", "training"]
Objective = Literal["latency", "throughput", "memory"]
Device = Literal["cpu", "cuda"]

LIVE = "live:"
"""Prefix of a target that is an object in a Python program, which no command line can load."""

SEEDS = 2**63
"""Seeds lie in [-SEEDS, SEEDS). PyTorch takes larger ones for negative ones. Further seeds are drawn from this range.
"""
DEFAULT_CALLS = 100_000
"""Number of calls assumed by default: an afternoon of a service, or a few epochs of a small job.

It is large enough that seconds of compiling pay back for a useful gain. It is small enough that minutes of autotuning
pay back only for a large one. The break-even point is always shown, so a wrong guess is visible.
"""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least work of one call: floating-point operations, and bytes read plus bytes written."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One request to tune, without any tensor or model in it.

    Attributes:
        target: the target, in the form that `torchwise.workload.target` reads, or `live:<name>` for a Python object.
        device: the device to run on.
        mode: "inference" runs the callable under `torch.no_grad()`. "training" adds a backward pass.
        objective: "latency" waits for each call. "throughput" issues calls back to back. "memory" minimises peak memory
            among the plans that are not slower than eager.
        calls: calls expected in total over the lifetime the decision is made for (at least 1).
        restarts: process starts over that lifetime, each of which pays the warm compile again (at least 1).
        seed: seed of the weights and inputs that the target's factory draws.
        memory_limit: bytes that a call may take at its peak, beyond those in use before it (weights, optimizer state,
            inputs), or None for no limit. Plans that take more are not chosen.
    """

    target: str
    device: Device = "cpu"
    mode: Mode = "inference"
    objective: Objective = "latency"
    calls: int = DEFAULT_CALLS
    restarts: int = 1
    seed: int = 0
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("device", Device), ("mode", Mode), ("objective", Objective)):
            value = getattr(self, name)
            if value not in get_args(allowed):
                raise WorkloadError(f"{name} is {value!r}, but must be one of {', '.join(get_args(allowed))}")
        for name in ("calls", "restarts"):
            value = getattr(self, name)
            if not is_count(value):
                raise WorkloadError(f"{name} is {value!r}, but must be a whole number of at least 1")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not -SEEDS <= self.seed < SEEDS:
            rule = f"must be a whole number from -2**63 to 2**63 - 1{_same(self)}"
            raise WorkloadError(f"seed is {self.seed!r}, but {rule}")
        if self.memory_limit is not None and not is_positive(self.memory_limit):
            raise WorkloadError(f"memory limit is {self.memory_limit!r} bytes, but must be above 0")


def _same(spec: WorkloadSpec) -> str:
    """Name the seed in bounds that means the same to PyTorch, if there is one."""
    if isinstance(spec.seed, int) and SEEDS <= spec.seed < 2 * SEEDS:
        return f"; PyTorch draws the same numbers from {spec.seed - 2 * SEEDS}"
    return ""
