"""Reference workloads as pure data: an entry for each, families of them, and the family `tutorial`."""

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


BREAK_SIZES = {
    "small": {"batch": 4, "width": 32},
    "medium": {"batch": 32, "width": 256},
    "large": {"batch": 128, "width": 1024},
    "extreme": {"batch": 1024, "width": 4096},
}
"""Two layers with a break between them, the same in the whole gallery."""

ENTRIES = (
    Entry(
        "tutorial.fusion_demo",
        "Four elementwise passes and a normalisation that fuse into one: memory traffic is everything",
        {
            "small": {"batch": 8, "length": 32, "width": 512},
            "medium": {"batch": 64, "length": 128, "width": 512},
            "large": {"batch": 256, "length": 128, "width": 512},
            "extreme": {"batch": 512, "length": 256, "width": 512},
        },
        trains=True,
    ),
    Entry(
        "tutorial.many_small_ops",
        "Launch overhead: many small layers, for which a CUDA graph does more than compilation",
        {
            "small": {"layers": 10, "width": 64, "batch": 4},
            "medium": {"layers": 20, "width": 256, "batch": 8},
            "large": {"layers": 40, "width": 512, "batch": 16},
            "extreme": {"layers": 80, "width": 1024, "batch": 32},
        },
        trains=True,
    ),
    Entry(
        "tutorial.elementwise_chain",
        "Seven elementwise passes over a large matrix: bandwidth, and nothing else",
        {
            "small": {"side": 64},
            "medium": {"side": 4096},
            "large": {"side": 8192},
            "extreme": {"side": 16384},
        },
    ),
    Entry(
        "tutorial.branch",
        "A Python `if` on the data: the host waits, the graph breaks, and no capture can hold both branches",
        {
            "small": {"batch": 8},
            "medium": {"batch": 64},
            "large": {"batch": 4096},
            "extreme": {"batch": 262144},
        },
        trains=True,
    ),
    Entry(
        "tutorial.transformer_block",
        "Large matrix products, which are fast already: what is left between them to fuse",
        {
            "small": {"batch": 2, "length": 16, "width": 64, "heads": 4},
            "medium": {"batch": 32, "length": 128, "width": 768, "heads": 12},
            "large": {"batch": 64, "length": 512, "width": 768, "heads": 12},
            "extreme": {"batch": 32, "length": 2048, "width": 768, "heads": 12},
        },
        trains=True,
    ),
    Entry(
        "tutorial.six_layer_transformer",
        "A training step: thousands of small launches forward and backward, which capture turns into one",
        {
            "small": {"batch": 2, "length": 16, "width": 64, "heads": 4},
            "medium": {"batch": 16, "length": 128, "width": 512, "heads": 8},
            "large": {"batch": 64, "length": 256, "width": 512, "heads": 8},
            "extreme": {"batch": 64, "length": 512, "width": 512, "heads": 8},
        },
        trains=True,
    ),
    Entry(
        "tutorial.break_print", "A graph break by `print`: output that must keep its place in the program", BREAK_SIZES
    ),
    Entry("tutorial.break_item", "A graph break by `.item()`: a tensor that becomes a Python number", BREAK_SIZES),
    Entry("tutorial.break_branch", "A graph break by a data-dependent `if` between two layers", BREAK_SIZES),
    Entry("tutorial.break_numpy", "A graph break by a NumPy round trip through the host", BREAK_SIZES),
    Entry("tutorial.break_list", "A graph break by a Python list that grows for as long as the data say", BREAK_SIZES),
)

TUTORIAL = Family("tutorial", "torchwise.zoo.tutorial", ENTRIES)
