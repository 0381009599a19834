"""One value of one dimension of a plan, with its costs, its possible changes to the answer, and its possible gain."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import logging
import pkgutil
from dataclasses import dataclass
from typing import Any, Literal

from torchwise.former_names import renamed_fields
from torchwise.plan.effort import EffortName
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait, check_trait

TargetCost = Literal["all", "gemm", "conv", "launch", "compile", "memory"]
"""The part of the time that a choice can act on.

It is all of it, matrix products and convolutions, or convolutions alone. "launch" is the time between kernels (a GPU
waits for the host, a CPU runs Python), and "compile" only the time it takes to compile. "memory" is none of it, as the
choice saves memory alone.
"""

logger = logging.getLogger("torchwise")


@renamed_fields(
    numerics="legality",
    required_traits="needs",
    excluded_by="unless",
    requires="on",
    implies="brings",
    implies_for="brings_for",
    target_cost="acts",
    min_remaining_fraction="keeps",
)
@dataclass(frozen=True, slots=True)
class Choice:
    """One value that a field of a `Plan` can take.

    Attributes:
        field: the plan's field, or "options" for one compiler option.
        value: its value, or `(name, value)` for an option.
        numerics: how far it may move the answer.
        complexity: how much it adds to understand and maintain. Ties go to the smaller sum.
        summary: its effect, in a line, for people.
        devices: devices on which it means anything.
        modes: "inference", "training".
        required_traits: traits the workload must have.
        excluded_by: traits it must not have, each with the reason.
        requires: choices it only makes sense with, as (field, value).
        implies: choices that are proposed together with it if they are open, as (field, value): those it only makes
            sense with, and those that go well with it.
        implies_for: choices that it implies for workloads with a trait, as (trait, (field, value)).
        effort: the least effort at which it is tried by itself.
        quick_with: traits of a workload with any of which that is effort "quick".
        compile_factor: compile time as a multiple of a plain compile, or 0 if it compiles nothing.
        target_cost: the part of the time that it can improve.
        min_remaining_fraction: share of that part that is sure to remain, so that the rest bounds the gain.
        carries_over: whether a loss on one plan predicts a loss on others, so that it is not tried again.
    """

    field: str
    value: Any
    numerics: Numerics
    complexity: int
    summary: str
    devices: tuple[str, ...] = ("cpu", "cuda")
    modes: tuple[str, ...] = ("inference", "training")
    required_traits: tuple[Trait, ...] = ()
    excluded_by: tuple[tuple[Trait, str], ...] = ()
    requires: tuple[tuple[str, Any], ...] = ()
    implies: tuple[tuple[str, Any], ...] = ()
    implies_for: tuple[tuple[Trait, tuple[str, Any]], ...] = ()
    effort: EffortName = "standard"
    quick_with: tuple[Trait, ...] = ()
    compile_factor: float = 1.0
    target_cost: TargetCost = "all"
    min_remaining_fraction: float = 0.0
    carries_over: bool = False

    def __post_init__(self) -> None:
        """Take traits by their values, too, as a plug-in may name them.

        Raises:
            PlanError: a trait is unknown.
        """
        named = ((field, getattr(self, field)) for field in ("required_traits", "quick_with"))
        found: dict[str, Any] = {field: tuple(check_trait(one, field) for one in traits) for field, traits in named}
        for field in ("excluded_by", "implies_for"):
            found[field] = tuple((check_trait(trait, field), other) for trait, other in getattr(self, field))
        for field, value in found.items():
            object.__setattr__(self, field, value)

    @property
    def key(self) -> tuple[str, Any]:
        """Its key: the field and the value, which for an option is its name and value."""
        return (self.field, self.value)


ANY = "*"
"""A value that describes every value of a field that no other choice names. It is never proposed by itself."""

CHOICES: dict[tuple[str, Any], Choice] = {}
"""Every registered choice, in the order of `choices/`: the order in which cheap ones come first."""


def register(*choices: Choice) -> None:
    """Add choices to the space. The last one registered under a key holds.

    A plug-in may call it too, from a function that an entry point of the group "torchwise.choices" names. Then every
    process knows its choices, and reads plans that hold them.
    """
    CHOICES.update({choice.key: choice for choice in choices})


def load_choices() -> dict[tuple[str, Any], Choice]:
    """Import every file in `choices/`, each of which registers its own, call plug-ins, and return all choices."""
    _import_choices()
    return CHOICES


@functools.cache  # a search asks for the choices a thousand times, and the folder was read each time
def _import_choices() -> None:
    from torchwise.plan import choices

    for module in pkgutil.iter_modules(choices.__path__):
        importlib.import_module(f"{choices.__name__}.{module.name}")
    for entry in importlib.metadata.entry_points(group="torchwise.choices"):
        try:
            entry.load()()
        except Exception as error:  # a plug-in may raise anything, and plans without it must be read all the same
            logger.warning("torchwise: the plug-in %s registers no choices (%r)", entry.value, error)
