"""How far a choice may move the answer."""

from __future__ import annotations

from enum import StrEnum

from torchwise.errors import PlanError


class Legality(StrEnum):
    """The effect of a choice on the arithmetic, from harmless to lossy."""

    EXACT = "exact"
    """The same arithmetic in the same order."""
    REORDERED = "reordered"
    """The same precision in another order: fused, tiled or folded."""
    REDUCED = "reduced"
    """Lower precision somewhere."""
    SWAPPED = "swapped"
    """Another operator in place of the model's own."""

    @property
    def rank(self) -> int:
        """Position in the order exact < reordered < reduced < swapped."""
        return list(Legality).index(self)

    def allows(self, other: Legality) -> bool:
        """Whether a user who allows up to `self` allows `other`."""
        return other.rank <= self.rank

    @classmethod
    def of(cls, name: str) -> Legality:
        """Read a level by name.

        Raises:
            PlanError: there is no such level.
        """
        try:
            return cls(name)
        except ValueError:
            raise PlanError(f"allow is {name!r}, but must be one of {', '.join(cls)}") from None
