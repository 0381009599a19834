"""The values that compiled code depends on, by its guards, and which of them differ now.

Dynamo names a guard's subject by an expression over local variables (`L`) and global ones (`G`), such as
`L['self'].step`. The values of these expressions are noted when something is compiled. They are read again when no
compiled code fits a call. Notes keep no tensor alive.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from torchwise.compile.signature import is_plain, is_strided, plain_key
from torchwise.errors import StalePlanError


class VaryingKind(StrEnum):
    """Kinds of values on which compiled code depends."""

    NUMBER = "number"
    TEXT = "text"
    FLAG = "flag"
    VALUE = "value"
    """Any other plain value."""
    TENSOR = "tensor"
    """A tensor's shape, dtype, device or strides."""
    LENGTH = "length"
    OBJECT = "object"
    WEIGHT = "weight"
    """Another tensor in the place of a weight."""
    CONTENT = "content"
    """The values in weights."""
    BRANCH = "branch"
    """The code that a call reaches."""
    STATE = "state"
    """A setting of PyTorch's, or any other subject of a guard that is no value."""


Summary = tuple[VaryingKind, Any]
"""The kind of a value, and the part of it to compare."""
Noted = dict[str, Summary]
"""Summaries by Dynamo's expressions."""

_MODULES = re.compile(r"\._modules\['([^']*)'\]")
_HELD = re.compile(r"\._(?:parameters|buffers)\['([^']*)'\]")
_OF_CLASS = re.compile(r"dict\(type\((.+)\)\.__dict__\)\['(\w+)'\]")
_OF_MODULE = re.compile(r"G\['__import_(\w+)'\]\.(.+)")
_ROOT = re.compile(r"(?P<kind>[LG])\['(?P<name>\w+)'\](?P<rest>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class VaryingValue:
    """A value on which compiled code depends, and that differs from before.

    Attributes:
        name: as Dynamo writes it.
        place: its description, such as "`step` on the model".
        kind: the kind of the value.
        value: its present value, to show, or "" if there is nothing to show.
        is_integer: whether it is one now, and was.
    """

    name: str
    place: str
    kind: VaryingKind
    value: str = ""
    is_integer: bool = False


class Guard(abc.ABC):
    """Detects whether something changed since the last snapshot.

    The guards of this package differ in scope: `ModuleGuard` compares a module's structure, mode, attributes and the
    memory of its weights, and `CodeGuard` the code that a call runs. `DictContents` compares dicts for both.
    """

    @abc.abstractmethod
    def take_snapshot(self) -> None:
        """Take the present state as the reference."""

    @abc.abstractmethod
    def has_changed(self) -> bool:
        """Whether something differs from the last snapshot. It runs on every call."""


class ChangedModelError(StalePlanError):
    """The model changed since the plan was compiled for it, and the plan cannot follow the change.

    Attributes:
        varied: the difference.
    """

    def __init__(self, message: str, varied: VaryingValue) -> None:
        super().__init__(message)
        self.varied = varied


def note(values: Iterable[tuple[str, Any]]) -> Noted:
    """Note values by their expressions."""
    return {name: _summary(value) for name, value in values if name}


def find_varied(noted: Noted, scope: Mapping[str, Any], owner: str | None) -> list[VaryingValue]:
    """Return the noted values that differ now, in a scope of local (L) and global (G) variables."""
    found = []
    for name, before in noted.items():
        try:
            now = _summary(eval(name, {}, dict(scope)))
        except Exception:  # it is gone, or its expression uses helpers of Dynamo's own
            continue
        if now != before:
            kind = now[0] if now[0] == before[0] else VaryingKind.OBJECT
            place, is_integer = place_of(name, owner, scope["L"]), _is_integer(before) and _is_integer(now)
            found.append(VaryingValue(name, place, kind, _format_value(now), is_integer))
    return found


def value_varied(place: str, now: Any) -> VaryingValue:
    """Return a variation for a place that has another value now."""
    summary = _summary(now)
    return VaryingValue(place, place, summary[0], _format_value(summary))


def place_of(name: str, owner: str | None, variables: Mapping[str, Any]) -> str:
    """Return the place of an expression of Dynamo's, in words, where `owner` is the local variable of the model."""
    if hit := _OF_MODULE.fullmatch(name):
        return f"`{hit[2]}` of {hit[1].replace('_dot_', '.')}"
    if hit := _OF_CLASS.fullmatch(name):
        return f"`{hit[2]}` of the class of {place_of(hit[1], owner, variables)}"
    root = _ROOT.fullmatch(name)
    if root is None:
        return f"`{name}`"
    rest = _HELD.sub(r".\1", _MODULES.sub(r".\1", root["rest"])).lstrip(".")
    if root["kind"] == "G":
        return f"the global variable `{root['name']}{root['rest']}`"
    if root["name"] in (owner, "self"):
        whose = "the model" if root["name"] == owner else f"the {type(variables.get('self')).__name__}"
        return f"`{rest}` on {whose}" if rest else whose
    return f"`{root['name']}{root['rest']}`"


def _summary(value: Any) -> Summary:
    if isinstance(value, torch.Tensor):
        strides = value.stride() if is_strided(value) else ()
        return VaryingKind.TENSOR, (value.dtype, tuple(value.shape), strides, value.device, value.requires_grad)
    if is_plain(value):
        return _kind_of_plain(value), plain_key(value)
    if isinstance(value, (tuple, list, dict, set)):
        return VaryingKind.LENGTH, (type(value), len(value))
    return VaryingKind.OBJECT, (type(value), id(value))


def _kind_of_plain(value: Any) -> VaryingKind:
    if isinstance(value, bool):
        return VaryingKind.FLAG
    if isinstance(value, (int, float, complex)):
        return VaryingKind.NUMBER
    return VaryingKind.TEXT if isinstance(value, str) else VaryingKind.VALUE


def _is_integer(summary: Summary) -> bool:
    return summary[0] is VaryingKind.NUMBER and summary[1][0] is int


def _format_value(summary: Summary) -> str:
    kind, value = summary
    if kind is VaryingKind.TENSOR:
        return f"{str(value[0]).removeprefix('torch.')}{list(value[1])}"
    if kind is VaryingKind.OBJECT:
        return ""
    last = value[-1] if isinstance(value, tuple) else value
    is_float = kind is VaryingKind.NUMBER and isinstance(last, str)  # floats are compared by their text
    text = last if is_float else repr(last)
    return text if len(text) <= 40 else f"{text[:37]}..."
