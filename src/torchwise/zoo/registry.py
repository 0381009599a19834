"""Find a reference workload by name, `family.operation[@size]`, in Torchwise's own family and in those of plug-ins.

Listing them loads no torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from torchwise.errors import TargetError, WorkloadError, did_you_mean
from torchwise.installation import suggest_models_package
from torchwise.zoo.catalogue import SIZES, TUTORIAL, Entry, Family

if TYPE_CHECKING:
    import torch

    from torchwise.workload import Workload

GROUP = "torchwise.zoo_families"
"""The entry-point group in which plug-ins offer families."""
KNOWN = ("energy_flow", "ivhl", "spinlock", "arr_coc", TUTORIAL.name, "training")
"""Families that are shown before all others. All but the tutorial come with the package `torchwise-models`."""
DEFAULT_SIZE = "medium"


@dataclass(frozen=True, slots=True)
class Zoo:
    """All families that are installed.

    Attributes:
        families: those that can be used, in the order in which they are shown.
        problems: the reason for each that cannot be used.
    """

    families: Mapping[str, Family]
    problems: Mapping[str, str]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every workload, family by family."""
        return tuple(entry for family in self.families.values() for entry in family.entries)

    @property
    def absent(self) -> tuple[str, ...]:
        """The families of `torchwise-models` if it is not installed."""
        return tuple(name for name in KNOWN if name not in self.families and name not in self.problems)

    def explain(self, name: str) -> str | None:
        """Return why no workload `name` can be used, if the reason is its whole family."""
        family = name.partition(".")[0]
        if family in self.absent:
            return f"the zoo family {family!r} comes with {suggest_models_package()}"
        return None if family in self.families else self.problems.get(family)

    def explain_rest(self) -> list[str]:
        """Return why families cannot be used, for the end of a message that lists those that can."""
        names = ", ".join(self.absent)
        reasons = [f"the zoo families {names} come with {suggest_models_package()}"] if names else []
        return [*reasons, *self.problems.values()]


def load_zoo() -> Zoo:
    """Import the catalogue of each family. No plug-in can break the families of others."""
    families, problems = {TUTORIAL.name: TUTORIAL}, {}
    offered = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name)
    for name, entries in groupby(offered, key=lambda entry: entry.name):
        found = _load_family(name, list(entries))
        if isinstance(found, Family):
            families[name] = found
        else:
            problems[name] = f"the zoo family {name!r} {found}"
    order = [*KNOWN, *sorted(families)]
    return Zoo({name: families[name] for name in sorted(families, key=order.index)}, problems)


def find_program_folders() -> tuple[str, ...]:
    """Return the folders that hold the programs of the zoo. Their code counts as a user's own."""
    folders = []
    for family in load_zoo().families.values():
        try:
            spec = importlib.util.find_spec(family.module)
        except ImportError:
            continue  # nothing of it can run
        if spec and spec.origin:
            folders.append(str(Path(spec.origin).parent))
    return tuple(folders)


def _load_family(name: str, offered: list[importlib.metadata.EntryPoint]) -> Family | str:
    """Return the family called `name`, or why it cannot be used."""
    package = " and ".join(entry.dist.name if entry.dist else entry.value for entry in offered)
    if name == TUTORIAL.name:
        return f"of {package} is left out, as Torchwise has one of that name: it must have another name"
    if len(offered) > 1:
        return f"comes from {package}, but must come from one package: uninstall the others"
    try:
        family = offered[0].load()
    except Exception as error:  # importing a plug-in may raise any error, which must not affect other families
        return f"of {package} cannot be loaded ({type(error).__name__}: {error}): repair or uninstall {package}"
    if not isinstance(family, Family):
        return f"of {package} is of type {type(family).__name__}, but must be a torchwise.zoo.Family"
    if family.name != name:
        return f"of {package} is called {family.name!r}, but must be called as its entry point is"
    return family


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
