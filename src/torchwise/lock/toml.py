"""Write values as TOML in one canonical form, so that equal contents give equal files.

Python reads TOML (`tomllib`), but cannot write it. Existing writers spread every interval and every plan over several
lines, which are hard to review.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def header(path: Iterable[str]) -> str:
    """Return the line that begins a table."""
    return f"[{'.'.join(map(key, path))}]"


def key(name: str) -> str:
    """Return a name as a key, quoted if it must be."""
    return name if _BARE.fullmatch(name) else _text(name)


def pair(name: str, value: Any) -> str:
    """Return `name = value`, on one line. In a list of several texts, each text has its own line.

    Raises:
        TypeError: TOML has no such value.
    """
    if isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(item, str) for item in value):
        return "\n".join([f"{key(name)} = [", *(f"  {_text(item)}," for item in value), "]"])
    return f"{key(name)} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (int, float)):
        return repr(value)  # the shortest text that is read as the same float; `inf` and `nan` as in TOML
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key(name)} = {_value(item)}' for name, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"{value!r} is of type {type(value).__name__}, which TOML does not have")


def _text(text: str) -> str:
    """Return a basic string. TOML has JSON's escapes, and wants one more character escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
