"""Find a reference workload by name, `family.operation[@size]`. Listing them loads no torch."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchwise.errors import TargetError, WorkloadError, did_you_mean
from torchwise.zoo.entry import SIZES, Entry
from torchwise.zoo.families import load_zoo

if TYPE_CHECKING:
    import torch

    from torchwise.workload import Workload

DEFAULT_SIZE = "medium"


def list_workloads() -> tuple[Entry, ...]:
    """List every reference workload, family by family."""
    return load_zoo().entries


def load(name: str, *, device: str = "cpu", dtype: torch.dtype | None = None, seed: int = 0) -> Workload:
    """Build the workload `name`, which is `family.operation[@size]`. The default size is "medium".

    Args:
        name: such as "tutorial.fusion_demo" or "ivhl.field_superposition@small".
        device: the device of its weights and inputs. They are drawn on the CPU, so that every device sees the same.
        dtype: dtype of weights and inputs (of their real parts), by default float32.
        seed: seed of every draw. Equal seeds give equal numbers, in every dtype, up to its rounding.

    Raises:
        TargetError: there is no such family, operation or size. Near misses are named.
        WorkloadError: the workload has no meaning in this dtype.
    """
    import torch

    from torchwise.zoo.random_inputs import Request

    entry, size = parse(name)
    dtype = dtype or torch.float32
    if not dtype.is_floating_point:
        raise WorkloadError(f"dtype is {dtype}, but must be a floating-point type, such as torch.float32")
    module = importlib.import_module(load_zoo().families[entry.family].module)
    build = getattr(module, f"build_{entry.operation}")
    workload: Workload = build(Request(f"{entry.name}@{size}", device, dtype, seed), **entry.sizes[size])
    return workload


def parse(name: str) -> tuple[Entry, str]:
    """Return the entry and the size that `family.operation[@size]` names.

    Raises:
        TargetError: there is no such family, operation or size. Near misses are named.
    """
    base, _, size = name.partition("@")
    entry, size = find(base), size or DEFAULT_SIZE
    if size not in SIZES:
        raise TargetError(f"size is {size!r}{did_you_mean(size, SIZES) or '.'} There are {', '.join(SIZES)}")
    return entry, size


def find(name: str) -> Entry:
    """Return the entry called `name`, without a size.

    Raises:
        TargetError: there is none. The message names the near misses, and the entries in the family or all families.
    """
    found = select(name)
    if found[0].name != name:
        raise TargetError(f"{name!r} is a whole zoo family; choose one of {', '.join(entry.name for entry in found)}")
    return found[0]


def select(name: str) -> tuple[Entry, ...]:
    """Return the entries of the family called `name`, or the one entry of that name, without a size.

    Raises:
        TargetError: there is neither. The message names the near misses, and the entries in the family or all families.
    """
    zoo = load_zoo()
    entries = zoo.entries
    found = tuple(entry for entry in entries if name in (entry.name, entry.family))
    if found:
        return found
    if reason := zoo.explain(name):
        raise TargetError(reason)
    family, _, operation = name.partition(".")
    siblings = [entry.operation for entry in entries if entry.family == family]
    if siblings:
        hint = did_you_mean(operation, siblings) or "."
        raise TargetError(f"zoo family {family!r} has no operation {operation!r}{hint} There are {', '.join(siblings)}")
    spellings = _ways_to_miss(entries)
    hint = did_you_mean(name, spellings, spellings.__getitem__) or "."
    listed = f"`torchwise zoo` lists its families: {', '.join(zoo.families)}"
    raise TargetError("; ".join([f"the zoo has no workload {name!r}{hint} {listed}", *zoo.explain_rest()]))


def _ways_to_miss(entries: Iterable[Entry]) -> dict[str, str]:
    """Map possible inputs to the names they mean: a full name, an operation without its family, or a family."""
    spellings: dict[str, str] = {}
    for entry in entries:
        spellings |= {entry.operation: entry.name, entry.family: entry.family, entry.name: entry.name}
    return spellings
