"""Enums whose values are stored, and of which a later version may know more."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Self


class OpenEnum(StrEnum):
    """Texts that are read from stores, which other versions share.

    A text that is no member is kept as it is, and is equal to no member. A former value stands for its member.
    """

    @classmethod
    def former_values(cls) -> Mapping[str, str]:
        """Return the values that members had in earlier versions, with the values that they have now."""
        return {}

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        if (now := cls.former_values().get(value)) is not None:
            return cls(now)
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown

    @property
    def is_known(self) -> bool:
        """Whether it is a member, as opposed to a text of another version."""
        return self.value in type(self)._value2member_map_
