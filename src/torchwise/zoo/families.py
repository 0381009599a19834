"""The families of the zoo: Torchwise's own, and those that plug-ins offer. Finding them loads no torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from torchwise.plan.workload_spec import MODELS_PACKAGE, NOT_INSTALLED
from torchwise.zoo.entry import Entry, Family
from torchwise.zoo.tutorial_catalogue import TUTORIAL

GROUP = "torchwise.zoo_families"
"""The entry-point group in which plug-ins offer families."""
KNOWN = ("energy_flow", "ivhl", "spinlock", "arr_coc", TUTORIAL.name, "training")
"""Families that are shown before all others. All but the tutorial come with the package `torchwise-models`."""


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
            return f"the zoo family {family!r} comes with {MODELS_PACKAGE}, {NOT_INSTALLED}"
        return None if family in self.families else self.problems.get(family)

    def explain_rest(self) -> list[str]:
        """Return why families cannot be used, for the end of a message that lists those that can."""
        names = ", ".join(self.absent)
        reasons = [f"the zoo families {names} come with {MODELS_PACKAGE}, {NOT_INSTALLED}"] if names else []
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
