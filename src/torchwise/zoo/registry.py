"""From a name, `family.operation[@size]`, to a reference workload. Listing them loads no torch."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchwise.errors import TargetError, WorkloadError

if TYPE_CHECKING:
    import torch

    from torchwise.workload import Workload

SIZES = ("small", "medium", "large", "extreme")
DEFAULT_SIZE = "medium"


@dataclass(frozen=True, slots=True)
class Entry:
    """One reference workload, as data.

    Attributes:
        name: `family.operation`. The module `torchwise.zoo.<family>` builds it, with `build_<operation>`.
        summary: what it shows, in a line.
        sizes: for each size, the keyword arguments of its builder.
    """

    name: str
    summary: str
    sizes: Mapping[str, Mapping[str, int]]

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


def list_workloads() -> tuple[Entry, ...]:
    """List every reference workload, in the order of the catalogue."""
    from torchwise.zoo.catalogue import CATALOGUE  # which describes itself with `Entry`

    return CATALOGUE


def load(name: str, *, device: str = "cpu", dtype: torch.dtype | None = None, seed: int = 0) -> Workload:
    """Build the workload `name`, which is `family.operation[@size]`; the size is "medium" where none is given.

    Args:
        name: such as "tutorial.fusion_demo" or "ivhl.field_superposition@small".
        device: where its weights and inputs are put. They are drawn on the CPU, so that every device sees the same.
        dtype: of weights and inputs (of their real parts); float32 where left out.
        seed: of every draw. Equal seeds give equal numbers, in every dtype, up to its rounding.

    Raises:
        TargetError: there is no such family, operation or size; near misses are named.
        WorkloadError: the workload has no meaning in this dtype.
    """
    import torch

    from torchwise.zoo.draws import Request

    base, _, size = name.partition("@")
    entry = find(base)
    size = size or DEFAULT_SIZE
    if size not in entry.sizes:
        raise TargetError(f"size is {size!r}{_hint(size, SIZES, SIZES)}")
    dtype = dtype or torch.float32
    if not dtype.is_floating_point:
        raise WorkloadError(f"dtype is {dtype}, but must be a floating-point type, such as torch.float32")
    module = importlib.import_module(f"torchwise.zoo.{entry.family}")
    build = getattr(module, f"build_{entry.operation}")
    workload: Workload = build(Request(f"{entry.name}@{size}", device, dtype, seed), **entry.sizes[size])
    return workload


def find(name: str) -> Entry:
    """Return the entry called `name`, without a size.

    Raises:
        TargetError: there is none; it names the near misses, and what there is in the family or at all.
    """
    entries = {entry.name: entry for entry in list_workloads()}
    if name in entries:
        return entries[name]
    family, _, operation = name.partition(".")
    siblings = {full: entry.operation for full, entry in entries.items() if entry.family == family}
    if siblings and operation:
        hint = _hint(operation, siblings.values(), siblings)
        raise TargetError(f"zoo family {family!r} has no operation {operation!r}{hint}")
    if siblings:
        raise TargetError(f"{name!r} is a whole zoo family; choose one of {', '.join(siblings)}")
    raise TargetError(f"the zoo has no workload {name!r}{_hint(name, _ways_to_miss(entries), entries)}")


def _ways_to_miss(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Map what people type to the workload meant: its name, or its operation without a family."""
    return {entry.operation: name for name, entry in entries.items()} | {name: name for name in entries}


def _hint(name: str, known: Iterable[str], listed: Iterable[str]) -> str:
    """Name the near misses of `name` among `known` (which may map each to what is meant), and list all there are."""
    meant = known if isinstance(known, Mapping) else {word: word for word in known}
    close = list(dict.fromkeys(meant[word] for word in difflib.get_close_matches(name, list(meant), n=3)))
    question = f"; did you mean {' or '.join(close)}?" if close else "."
    return f"{question} There are {', '.join(listed)}"
