"""Describe the differences of two models by the details of their structures (`structure_details`), without torch."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

Details = dict[str, str]
"""The details of a structure: the name of each part, and its description."""
CODE = "#"
"""Prefix of the values that stand for code. The rest of such a value is a digest, which nobody can read."""
MODE, TRAINING, EVAL = "'s mode", "training mode", "eval mode"
MAX_NAMED = 3
MAX_BYTES = 16 << 20
"""Maximum size of details as JSON, in bytes. Torchwise never wrote data that unpacks to more."""


OTHER_WEIGHTS = "the error of the plan was not judged on these weights"
"""Said of a decision whose plan the user's tolerance judged on weights of other values."""


def stands_for_code(value: str | None) -> bool:
    """Whether the value of a detail stands for code, of which only a digest is known."""
    return value is not None and value.startswith(CODE)


def pack_details(details: Details) -> str:
    """Return details as one short word, for a file that people read for other reasons."""
    return base64.b64encode(zlib.compress(json.dumps(details).encode(), 9)).decode()


def unpack_details(word: str) -> Details:
    """Return the details given to `pack_details`. Return no details for other data, as they only serve a message."""
    try:
        unpack = zlib.decompressobj()
        found = json.loads(unpack.decompress(base64.b64decode(word, validate=True), MAX_BYTES))
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return {}
    whole = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    return found if whole else {}


def another_model(before: str, now: str) -> str:
    """Say that the model has changed since a decision, and how, if details of it were stored."""
    named = differences(unpack_details(before), unpack_details(now))
    return "the model's code, mode or structure of weights changed" + (f": {named}" if named else "")


class DetailKind(StrEnum):
    """Kinds of details. The value begins the detail's name."""

    PART = "part"
    ATTRIBUTE = "attribute"
    WEIGHT = "weight"
    BUFFER = "buffer"
    OTHER = ""


_NAMED_KINDS = {kind.value for kind in DetailKind if kind is not DetailKind.OTHER}


@dataclass(frozen=True, slots=True)
class DetailName:
    """The name of a detail, taken apart. Decisions keep names as texts, and no other code reads those.

    The path is that of the part, attribute, weight or buffer, or the whole name of another detail.
    """

    kind: DetailKind
    path: str
    is_mode: bool = False

    @classmethod
    def from_text(cls, text: str) -> DetailName:
        """Read a name as `details_of` writes it."""
        whose, is_mode = text.removesuffix(MODE), text.endswith(MODE)
        word, _, path = whose.partition(" ")
        if path and word in _NAMED_KINDS:
            return cls(DetailKind(word), path, is_mode)
        return cls(DetailKind.OTHER, whose, is_mode)

    @property
    def owner(self) -> str:
        """The name without the mode, for people."""
        return f"{self.kind} {self.path}".strip()

    def is_inside(self, part: str) -> bool:
        """Whether it is a detail of a part, or of a part of it."""
        is_its_mode = self.is_mode and self.path == part
        return self.kind is not DetailKind.OTHER and (is_its_mode or self.path.startswith(f"{part}."))


MODEL_MODE = DetailName(DetailKind.OTHER, "the model", is_mode=True)


def differences(before: Details, now: Details) -> str:
    """Describe how a model differs. Return "" if either side is unknown, or if details show no difference."""
    if not before or not now:
        return ""
    differing = {name: DetailName.from_text(name) for name in {**now, **before} if before.get(name) != now.get(name)}
    # A new part, or one that is gone, implies the differences of its details.
    whole = [
        name.path
        for text, name in differing.items()
        if name.kind is DetailKind.PART and not name.is_mode and (text not in before or text not in now)
    ]
    names = {text: name for text, name in differing.items() if not _follows(name, differing.values(), whole)}
    named = [_difference(*item, before, now) for item in itertools.islice(names.items(), MAX_NAMED)]
    more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return "; ".join([*named, *more])


def _follows(name: DetailName, names: Collection[DetailName], whole: list[str]) -> bool:
    """Whether another difference implies this one: a part's mode by the model's, a part's details by a new part."""
    if name.kind is DetailKind.PART and name.is_mode and MODEL_MODE in names:
        return True
    return any(name.is_inside(part) for part in whole)


def _difference(text: str, name: DetailName, all_before: Details, all_now: Details) -> str:
    before, now = all_before.get(text), all_now.get(text)
    if name.is_mode:
        return f"{name.owner} is in {now or EVAL}, but was in {before or EVAL}"
    if before is None:
        return f"{text} is new" if stands_for_code(now) else f"{text} is new ({now})"
    if now is None:
        return f"{text} was removed" if stands_for_code(before) else f"{text} was removed ({before})"
    if stands_for_code(before) or stands_for_code(now):
        return f"{text} changed"
    return f"{text} is {now}, and was {before}"
