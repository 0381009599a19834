"""Read a target's options after the `@`, such as `batch=32,dtype=bfloat16`, and import its library on first use.

This module needs no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torchwise.errors import TargetError, did_you_mean
from torchwise.installation import suggest_extra

DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a target.

    Attributes:
        target: scheme and name without the options, for messages.
        numbers: every numeric option of this target, given or by default. None means the model's own value.
        flags: the given options without a value.
        dtype: one of `DTYPES`, or None if not given.
    """

    target: str
    numbers: Mapping[str, int | None]
    flags: frozenset[str]
    dtype: str | None

    def number(self, name: str) -> int:
        """Return a numeric option that has a default."""
        value = self.numbers[name]
        if value is None:
            raise KeyError(f"option {name} of {self.target} has no value of its own")
        return value


def parse(target: str, text: str, *, numbers: Mapping[str, int | None], flags: Collection[str]) -> Options:
    """Read `key=value` options and flags, separated by commas. `dtype` is an option of every target.

    Args:
        target: scheme and name, such as "timm:resnet50".
        text: the text after the `@`, which may be empty.
        numbers: the target's numeric options, with their defaults.
        flags: the target's options without a value.

    Raises:
        TargetError: an option is unknown, given twice, out of range, or wrongly given with or without a value.
    """
    options: dict[str, str | None] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        _check_key(target, key, [*numbers, "dtype", *flags])
        if key in options:
            raise TargetError(f"option {key} of {target} is given twice, but must be given once")
        options[key] = value if equals else None
    return Options(
        target,
        {name: _number(name, options[name]) if name in options else default for name, default in numbers.items()},
        frozenset(_flag(name, options[name]) for name in flags if name in options),
        _dtype(options["dtype"]) if "dtype" in options else None,
    )


def import_library(name: str, target: str) -> Any:
    """Import the module `name`, which `target` needs.

    Raises:
        TargetError: the module is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        remedy = suggest_extra("libraries", "torchwise-models")
        raise TargetError(f"{target} needs {error.name}, which is not installed: {remedy}") from error
    except Exception as error:  # a build for another torch may raise any error, such as a RuntimeError
        raise TargetError(
            f"{target} needs {name}, which is installed but cannot be imported ({type(error).__name__}: {error}): "
            f"install the builds of {name} and torchvision that fit the installed torch, as pytorch.org lists them"
        ) from error


def suggest_names(word: str, known: Collection[str], most: int = 12) -> str:
    """Return the end of a message about an unknown word: similar ones among `known`, or the first of all."""
    rest = f" and {len(known) - most} more" if len(known) > most else ""
    return did_you_mean(word, known) or f"; there are {', '.join(list(known)[:most])}{rest}"


def _check_key(target: str, key: str, known: Collection[str]) -> None:
    if key not in known:
        raise TargetError(f"{target} has no option {key!r}{suggest_names(key, known)}")


def _number(name: str, text: str | None) -> int:
    if text is None:
        raise TargetError(f"option {name} has no value, but must have one, such as {name}=1")
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise TargetError(f"{name} is {text!r}, but must be a whole number of at least 1")
    return int(text)


def _flag(name: str, text: str | None) -> str:
    if text is not None:
        raise TargetError(f"option {name} has the value {text!r}, but takes no value: leave out ={text}")
    return name


def _dtype(text: str | None) -> str:
    if text not in DTYPES:
        raise TargetError(f"dtype is {text!r}, but must be one of {', '.join(DTYPES)}")
    return text
