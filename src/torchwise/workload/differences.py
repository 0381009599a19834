"""Describe the differences of two models by the details of their structures (`structure_details`), without torch."""

from __future__ import annotations

import base64
import binascii
import json
import zlib

Details = dict[str, str]
"""The details of a structure: the name of each part, and its description."""
CODE = "#"
"""Prefix of the values that stand for code. The rest of such a value is a digest, which nobody can read."""
MODE, TRAINING, EVAL = "'s mode", "training mode", "eval mode"
MAX_NAMED = 3
MAX_BYTES = 16 << 20
"""Maximum size of details as JSON, in bytes. Torchwise never wrote data that unpacks to more."""


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
    """Say that the model has changed since something was made for it, and how, as far as details were kept."""
    named = differences(unpack_details(before), unpack_details(now))
    return "the model's code, mode or structure of weights is another" + (f": {named}" if named else "")


def differences(before: Details, now: Details) -> str:
    """Describe how a model differs. Return "" if either side is unknown, or if details show no difference."""
    if not before or not now:
        return ""
    names = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    whole = [name.removeprefix("part ") for name in names if name.startswith("part ") and not name.endswith(MODE)]
    whole = [name for name in whole if f"part {name}" not in before or f"part {name}" not in now]
    names = [name for name in names if not _follows(name, names, whole)]
    named = [_difference(name, before.get(name), now.get(name)) for name in names[:MAX_NAMED]]
    more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return "; ".join([*named, *more])


def _follows(name: str, names: list[str], whole: list[str]) -> bool:
    """Whether another difference implies this one: a part's mode by the model's, a part's details by a new part."""
    what, _, path = name.partition(" ")
    if what == "part" and path.endswith(MODE) and "the model's mode" in names:
        return True
    return any(path.startswith((f"{part}.", f"{part}'s")) for part in whole)


def _difference(name: str, before: str | None, now: str | None) -> str:
    if name.endswith(MODE):
        whose = name.removesuffix(MODE)
        return f"{whose} is in {now or EVAL}, and was in {before or EVAL}"
    if before is None:
        return f"{name} is new" if (now or "").startswith(CODE) else f"{name} is new ({now})"
    if now is None:
        return f"{name} is gone" if before.startswith(CODE) else f"{name} is gone ({before})"
    if CODE in (before[:1], now[:1]):
        return f"{name} is another"
    return f"{name} is {now}, and was {before}"
