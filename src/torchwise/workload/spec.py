"""What the user asked for, as pure data: which model, for how many calls, on what, to what end."""

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
"""From -SEEDS up to, not with it: to PyTorch, those above are the negative ones. Those beside a seed are drawn from."""
DEFAULT_CALLS = 100_000
"""Calls assumed where the user gives none: an afternoon of a service, a few epochs of a small job.

Large enough that a compile of seconds pays for any gain worth having, small enough that minutes of autotuning
must earn their keep. The break-even point is always shown, so a wrong guess is visible.
"""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """One request to tune, without any tensor or model in it.

    Attributes:
        target: what to run, as `torchwise.workload.target` reads it, or `live:<name>` for a Python object.
        device: where to run it.
        mode: "inference" runs the callable under `torch.no_grad()`; "training" adds a backward pass.
        objective: "latency" waits for each call, "throughput" issues calls back to back, "memory" minimises
            peak memory among the plans that are not slower than eager.
        calls: calls expected in total over the lifetime the decision is made for (at least 1).
        restarts: process starts over that lifetime, each of which pays the warm compile again (at least 1).
        seed: seed of the weights and inputs that the target's factory draws.
        memory_limit: bytes that a call may take at its peak, beyond what is held before it (weights, optimizer state,
            inputs); plans that take more are not decided for. None for no limit.
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
    """Name the seed in bounds that is the same to PyTorch, where there is one."""
    if isinstance(spec.seed, int) and SEEDS <= spec.seed < 2 * SEEDS:
        return f"; PyTorch draws the same numbers from {spec.seed - 2 * SEEDS}"
    return ""
