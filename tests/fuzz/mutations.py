"""Damage to files: bytes that flip, halves, splices, and the slips of people who edit them by hand."""

from __future__ import annotations

import json
import pickle
import random
import string
from collections.abc import Callable
from typing import Any

Path = tuple[Any, ...]

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -7, 2, 3.5, 0.0, -0.5, 1e-300, 1e300, 10**12, 2**63, -(2**63) - 1, 10**40,
    float("nan"), float("inf"), float("-inf"), "", " ", "x", "eager", "inductor", "null", "NaN", "1", "é", "日本",
    "\u202e", "\ud800", "\x00", "a" * 5000, [], {}, [[]], [None], {"": None}, {"low": 2.0, "mid": 1.0, "high": 3.0},
    {"schema": "torchwise.plan/1"}, ["complex_to_real", "complex_to_real"], [["freezing", True], ["freezing", True]],
)  # fmt: skip
ODD_BYTES: tuple[bytes, ...] = (
    b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\xff", b"\xc3", b"\xe2\x80\xae", b"\xf0\x9f\x92\xa5", b"\\ud800",
    b"[" * 3000, b'{"a":' * 2000, b"NaN", b"Infinity", b"-", b"1e999", b"9" * 5000, b'"', b"\\", b",", b":", b"]", b"}",
    b"\n", b"\r", b"#", b"=", b"nan", b"inf", b"0x1", b"1979-05-27", b"'''", b"<<<<<<< HEAD\n",
)  # fmt: skip


# ---- bytes


def flip(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def truncate(data: bytes, draw: random.Random) -> bytes:
    cut = draw.randrange(len(data) + 1)
    return draw.choice((data[:cut], data[cut:]))


def delete(data: bytes, draw: random.Random) -> bytes:
    first, last = _span(data, draw)
    return data[:first] + data[last:]


def repeat(data: bytes, draw: random.Random) -> bytes:
    first, last = _span(data, draw)
    return data[:last] + data[first:last] + data[last:]


def insert(data: bytes, draw: random.Random) -> bytes:
    at = draw.choice((0, len(data), draw.randrange(len(data) + 1)))
    return data[:at] + draw.choice((*ODD_BYTES, draw.randbytes(draw.randrange(1, 9)))) + data[at:]


def exchange(data: bytes, draw: random.Random) -> bytes:
    """Have two tokens change places."""
    (a, b), (c, d) = sorted((_token(data, draw), _token(data, draw)))
    return data if b > c else data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def encode(data: bytes, draw: random.Random) -> bytes:
    return data.decode(errors="replace").encode(
        draw.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1")), "replace"
    )


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip, flip, flip, truncate, delete, repeat, insert, insert, exchange, encode
)  # fmt: skip


def splice(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Put a part of another file into this one."""
    (a, b), (c, d) = _span(data, draw), _span(other, draw)
    return draw.choice((data[:a] + other[c:], data[:a] + other[c:d] + data[b:], data + other))


def _span(data: bytes, draw: random.Random) -> tuple[int, int]:
    first = draw.randrange(len(data) + 1)
    return first, min(first + draw.choice((1, 2, 5, 20, 200)), len(data))


def _token(data: bytes, draw: random.Random) -> tuple[int, int]:
    at = draw.randrange(len(data) + 1)
    marks = b'{}[],:="\n'
    first = max(data.rfind(bytes([mark]), 0, at) for mark in marks) + 1
    ends = [end for mark in marks if (end := data.find(bytes([mark]), at)) >= 0]
    return first, min(ends, default=len(data))


# ---- plain data


def slip(data: Any, others: list[Any], draw: random.Random) -> Any:
    """Return data with one slip in them, now and then with two."""
    data = _copy_data(data)
    for _ in range(draw.choice((1, 1, 1, 1, 2))):
        data = _apply_slip(data, _path(data, draw), others, draw)
    return data


def _apply_slip(data: Any, path: Path, others: list[Any], draw: random.Random) -> Any:
    value = _value_at(data, path)
    if not path:
        return draw.choice((*ODD_VALUES, [data], {"data": data})) if draw.random() < 0.05 else data
    holder, key = _value_at(data, path[:-1]), path[-1]
    kind = draw.randrange(8)
    if kind == 0:
        holder[key] = _copy_data(draw.choice(ODD_VALUES))
    elif kind == 1:
        del holder[key]
    elif kind == 2 and isinstance(holder, dict):
        items = [(misspelt(name, draw) if name == key else name, item) for name, item in holder.items()]
        holder.clear()
        holder.update(items)
    elif kind == 3:
        other = draw.choice(others)
        holder[key] = _copy_data(_value_at(other, _path(other, draw)))
    elif kind == 4 and isinstance(value, list):
        holder[key] = draw.choice((value * 2, value[::-1], value[1:], [*value, *value[:1]]))
    elif kind == 5 and isinstance(holder, dict):
        holder[draw.choice((misspelt(str(key), draw), "note", "schema", "id"))] = _copy_data(value)
    elif kind == 6:
        other = _path(data, draw)
        if other and other[: len(path)] != path and path[: len(other)] != other:  # neither lies in the other
            holder[key], _value_at(data, other[:-1])[other[-1]] = _value_at(data, other), value
    else:
        holder[key] = nudge_value(value, draw)
    return data


def nudge_value(value: Any, draw: random.Random) -> Any:
    """Return a value close to the given one, or far off."""
    if isinstance(value, bool) or value is None:
        return draw.choice((not value, int(bool(value)), str(value)))
    if isinstance(value, (int, float)):
        factor = draw.choice((-1, 1e9, 1 / 7, 1e300, -1e-3))
        return draw.choice((value + 1, value - 1, float(value) * factor, value * 10**30, str(value), [value]))
    if isinstance(value, str):
        return draw.choice((misspelt(value, draw), value.upper(), value + "/2", f" {value}", value.replace("/1", "/2")))
    return draw.choice((value, [value], str(value)))


def misspelt(word: str, draw: random.Random) -> str:
    at = draw.randrange(len(word)) if word else 0
    letter = draw.choice(string.ascii_lowercase + "_-é")
    return draw.choice(
        (word[:at] + word[at + 1 :], word[:at] + letter + word[at:], word[:at] + letter + word[at + 1 :], word.title())
    )


def twice(text: str, draw: random.Random) -> str:
    """Return JSON in which a key of the outermost object occurs twice."""
    data = json.loads(text)
    if not isinstance(data, dict) or not data:
        return text
    key = draw.choice(list(data))
    value = draw.choice((data[key], *ODD_VALUES[:6]))
    return text.replace("{", f"{{{json.dumps(key)}:{json.dumps(value)},", 1)


def _path(data: Any, draw: random.Random) -> Path:
    """Return the way to some value, mostly to one far in."""
    path: Path = ()
    while isinstance(data, (dict, list)) and data and draw.random() < 0.9:
        step = draw.choice(list(data)) if isinstance(data, dict) else draw.randrange(len(data))
        path, data = (*path, step), data[step]
    return path


def _copy_data(data: Any) -> Any:
    return pickle.loads(pickle.dumps(data))


def _value_at(data: Any, path: Path) -> Any:
    for step in path:
        data = data[step]
    return data
