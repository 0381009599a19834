"""Keyword arguments of public functions: an unknown one is refused with similar ones that there are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from torchwise.errors import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def checked_keywords(*options: type) -> Callable[[F], F]:
    """Decorate a function or a class so that an unknown keyword is a `TypeError` that names similar ones.

    Args:
        *options: typed dictionaries whose keys its `**options` may be.
    """

    def decorate(target: F) -> F:
        if isinstance(target, type):
            target.__init__ = _check(target.__init__, target.__name__, options)  # type: ignore[misc]
            return target
        return cast(F, _check(target, target.__name__, options))

    return decorate


def _check(function: Callable[..., Any], name: str, options: tuple[type, ...]) -> Callable[..., Any]:
    @functools.cache
    def list_known() -> dict[str, None]:  # on the first call, as reading a signature takes a while
        parameters = inspect.signature(function).parameters.values()
        own = [one.name for one in parameters if one.kind in NAMED and one.name != "self"]
        return dict.fromkeys([*own, *(key for keys in options for key in keys.__annotations__)])

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for keyword in kwargs:
            if keyword not in list_known():
                near = did_you_mean(keyword, list_known())
                raise TypeError(f"{name}() got an unexpected keyword argument {keyword!r}{near}")
        return function(*args, **kwargs)

    return call
