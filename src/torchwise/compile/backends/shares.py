"""The share of a model's operators that a compiler takes, where eager runs the rest."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

MIN_SHARE = 0.25
"""The least share of all operators that a compiler must take. With less it could hardly gain anything."""
MAX_REASONS = 3
"""Reasons that are named for operators that are left out."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Share:
    """How many operators a compiler takes, and why not the others.

    Attributes:
        name: of the compiler.
        operators: all of them, without views.
        taken: those that it compiles.
        parts: the graphs that it compiles.
        reasons: why it does not take others, the first one first, each once.
    """

    name: str
    operators: int = 0
    taken: int = 0
    parts: int = 0
    reasons: dict[str, None] = field(default_factory=dict)

    def __iadd__(self, other: Share) -> Share:
        """Count the operators of another graph as well."""
        self.operators += other.operators
        self.taken += other.taken
        self.parts += other.parts
        self.reasons.update(other.reasons)
        return self

    @property
    def is_enough(self) -> bool:
        """Whether the compiler takes as many as it must."""
        return self.taken >= MIN_SHARE * self.operators

    def __str__(self) -> str:
        """Say which share the compiler takes, and why not more, or "" if it takes all."""
        if not self.reasons:
            return ""
        taken = f"{self.taken} of {self.operators} operators, in {self.parts} {'part' if self.parts == 1 else 'parts'}"
        more = f"; and {len(self.reasons) - MAX_REASONS} more" if len(self.reasons) > MAX_REASONS else ""
        reasons = "; ".join(list(self.reasons)[:MAX_REASONS]) + more
        return f"{self.name} takes {taken}. Eager runs the rest: {reasons}"


_ALL: weakref.WeakSet[Share] = weakref.WeakSet()


def count_share(name: str) -> Share:
    """Return an empty share of a compiler, which `tell_shares` tells of while it is used."""
    share = Share(name)
    _ALL.add(share)
    return share


def tell_shares() -> str:
    """Say which shares compilers take of this process's models, and why not more, or "" if they take all."""
    return " ".join(dict.fromkeys(told for one in list(_ALL) if one.taken and (told := str(one))))
