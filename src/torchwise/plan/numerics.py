"""How far a choice may move the answer."""

from __future__ import annotations

from enum import EnumType, StrEnum

from torchwise.errors import PlanError
from torchwise.former_packages import warn_once

_FORMER_MEMBERS = {"REORDERED": "SAME_PRECISION", "REDUCED": "LOWER_PRECISION", "SWAPPED": "SUBSTITUTED"}


class _WithFormerMembers(EnumType):
    def __getattr__(cls, name: str) -> Numerics:
        if name not in _FORMER_MEMBERS:
            raise AttributeError(f"{cls.__name__} has no member {name!r}")
        warn_once(f"Legality.{name}", f"Numerics.{_FORMER_MEMBERS[name]}")
        return Numerics[_FORMER_MEMBERS[name]]


class Numerics(StrEnum, metaclass=_WithFormerMembers):
    """The effect of a choice on the arithmetic, from harmless to lossy."""

    EXACT = "exact"
    """The same arithmetic in the same order."""
    SAME_PRECISION = "same-precision"
    """The same precision in another order: fused, tiled or folded."""
    LOWER_PRECISION = "lower-precision"
    """Lower precision somewhere."""
    QUANTIZED = "quantized"
    """Weights, and perhaps activations, of fewer bits than any dtype that the model can be written in."""
    SUBSTITUTED = "substituted"
    """Another operator in place of the model's own."""

    @classmethod
    def _missing_(cls, value: object) -> Numerics | None:
        return next((level for level, former in _FORMER.items() if former == value), None)

    @property
    def former_name(self) -> str:
        """The name that the level had first, by which stores keep studies: those of earlier versions are found too."""
        return _FORMER.get(self, self.value)

    @property
    def rank(self) -> int:
        """Position in the order exact < same-precision < lower-precision < quantized < substituted."""
        return _RANKS[self]

    @property
    def is_judged_by_user(self) -> bool:
        """Whether no rounding explains such a change, so that the user has to say how large an error may be."""
        return self.rank >= Numerics.QUANTIZED.rank

    def allows(self, other: Numerics) -> bool:
        """Whether a user who allows up to `self` allows `other`."""
        return other.rank <= self.rank

    @classmethod
    def of(cls, name: str) -> Numerics:
        """Read a level by name.

        Raises:
            PlanError: there is no such level.
        """
        try:
            return cls(name)
        except ValueError:
            raise PlanError(f"allow is {name!r}, but must be one of {', '.join(cls)}") from None


_RANKS = {level: rank for rank, level in enumerate(Numerics)}

_FORMER = {
    Numerics.SAME_PRECISION: "reordered",
    Numerics.LOWER_PRECISION: "reduced",
    Numerics.SUBSTITUTED: "swapped",
}
"""The names that the levels had before. They are still read: in commands, code, lock files, stores and plug-ins."""
