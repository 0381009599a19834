"""An entry of the catalogue of reference workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SIZES = ("small", "medium", "large", "extreme")


@dataclass(frozen=True, slots=True)
class Entry:
    """One reference workload, as data.

    Attributes:
        name: `family.operation`. The module `torchwise.zoo.<family>` builds it, with `build_<operation>`.
        summary: the point of it, in a line.
        sizes: for each size, the keyword arguments of its builder.
        trains: whether it is meant to be trained, too: each parameter, and each input that requires it, gets a
            gradient.
        stochastic: whether it is random by design: its answer depends on PyTorch's global generators.
        is_step: whether a call is a whole training step, tuned in mode "training" alone.
        tolerance: error that float32's rounding may cause, as the largest error over the largest value, against
            float64.
    """

    name: str
    summary: str
    sizes: Mapping[str, Mapping[str, int]]
    trains: bool = False
    stochastic: bool = False
    is_step: bool = False
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        if tuple(self.sizes) != SIZES:
            raise ValueError(f"{self.name} has sizes {', '.join(self.sizes)}, but must have {', '.join(SIZES)}")

    @property
    def family(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    @property
    def operation(self) -> str:
        """The part of the name after the dot."""
        return self.name.partition(".")[2]
