"""Names and values of other versions: former ones work, with one warning each, and in stored data without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import wraps
from typing import Any, Self, TypeVar, cast

from torchwise.former_packages import warn_once

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_FIELDS: dict[type, dict[str, str]] = {}
"""The former names of each class's fields, with the names that they have now."""


def renamed_fields(**names: str) -> Callable[[C], C]:
    """Decorate a dataclass whose fields had other names, given as present=former.

    They work as arguments and attributes, and in stored data.
    """
    current = {former: name for name, former in names.items()}

    def decorate(kind: C) -> C:
        _FIELDS[kind] = current
        for former, name in current.items():
            setattr(kind, former, property(_read(f"{kind.__name__}.{former}", name)))
        init = kind.__init__  # type: ignore[misc]

        @wraps(init)
        def accept(self: Any, *args: Any, **kwargs: Any) -> None:
            for former in kwargs.keys() & current.keys():  # it wins: `dataclasses.replace` gives the other one as well
                warn_once(f"{kind.__name__}.{former}", current[former])
                kwargs[current[former]] = kwargs.pop(former)
            init(self, *args, **kwargs)

        kind.__init__ = accept  # type: ignore[misc]
        if "__setstate__" not in vars(kind):  # classes with slots are pickled by the order of their fields
            kind.__setstate__ = _make_setstate(current)  # type: ignore[attr-defined]
        return kind

    return decorate


def added_fields(*names: str) -> Callable[[C], C]:
    """Decorate a dataclass with slots, whose fields of these names were added since, in this order.

    It is pickled by the order of its fields. Pickles of earlier versions lack the added ones, which get their defaults.
    """

    def decorate(kind: C) -> C:
        def set_state(self: Any, state: list[Any]) -> None:
            every = fields(self)
            lacking = names[len(names) - max(len(every) - len(state), 0) :]
            held = zip((field.name for field in every if field.name not in lacking), state, strict=True)
            added = ((field.name, field.default) for field in every if field.name in lacking)
            for name, value in (*held, *added):
                object.__setattr__(self, name, value)

        kind.__setstate__ = set_state  # type: ignore[attr-defined]
        return kind

    return decorate


def renamed_arguments(**names: str) -> Callable[[F], F]:
    """Decorate a function whose keyword arguments had other names, given as present=former."""
    current = {former: name for name, former in names.items()}

    def decorate(function: F) -> F:
        @wraps(function)
        def accept(*args: Any, **kwargs: Any) -> Any:
            for former in kwargs.keys() & current.keys():
                if current[former] in kwargs:
                    raise TypeError(f"{function.__name__}() got {current[former]!r}, and its former name {former!r}")
                warn_once(f"{function.__name__}({former}=...)", f"{current[former]}=")
                kwargs[current[former]] = kwargs.pop(former)
            return function(*args, **kwargs)

        return cast(F, accept)

    return decorate


def _make_setstate(current: Mapping[str, str]) -> Callable[[Any, dict[str, Any]], None]:
    """Return the `__setstate__` of a dataclass without slots, for pickles that hold former names."""

    def set_state(self: Any, state: dict[str, Any]) -> None:
        names = {f.name for f in fields(self)}
        plain = {current.get(name, name): value for name, value in state.items()}
        # Cached properties are computed again: earlier versions derived them from the former names.
        vars(self).update({name: value for name, value in plain.items() if name in names})

    return set_state


def with_current_names(data: Any) -> Any:
    """Return plain data of a record with the names that its fields have now.

    Data are known as those of a class by its required fields, as data of other classes may hold equal names.
    """
    if isinstance(data, (list, tuple)):
        return data if data and isinstance(data[0], (int, float, str)) else [with_current_names(item) for item in data]
    if not isinstance(data, dict):
        return data
    names = next((known for kind, known in _FIELDS.items() if _is_of(data, kind, known)), {})
    return {names.get(name, name): with_current_names(item) for name, item in data.items()}


def _is_of(data: Mapping[Any, Any], kind: type, former: Mapping[str, str]) -> bool:
    if not former.keys() & data.keys():
        return False
    given = {former.get(name, name) for name in data}
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    return required <= given <= {f.name for f in fields(kind)}


def _read(former: str, name: str) -> Callable[[Any], Any]:
    def read(self: Any) -> Any:
        warn_once(former, name)
        return getattr(self, name)

    return read


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
