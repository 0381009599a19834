"""Reference workloads as pure data: an entry for each, and families of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SIZES = ("small", "medium", "large", "extreme")


@dataclass(frozen=True, slots=True)
class Entry:
    """One reference workload, as data.

    Attributes:
        name: `family.operation`. The function `build_<operation>` of its family's module builds it.
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


@dataclass(frozen=True, slots=True)
class Family:
    """Reference workloads on one subject.

    A plug-in offers its families in the entry-point group `torchwise.zoo_families`, each under its own name. The module
    that an entry point names is imported to list the zoo, and so it should import no torch.

    Attributes:
        name: the part of its workloads' names before the dot.
        module: the module with `build_<operation>` for each entry, which is imported to build one.
        entries: its workloads, in the order in which they are shown.
    """

    name: str
    module: str
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        for entry in self.entries:
            if entry.family != self.name:
                raise ValueError(
                    f"{entry.name} is in family {self.name!r}, but its name must begin with '{self.name}.'"
                )
