"""Names of torch that it does not promise to keep, looked up by those modules that list theirs."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterable
from typing import Any

import torch

from torchwise.errors import UnsupportedError

Name = tuple[str, str]
"""A module, and a name in it, or in a class of it, as `Class.member`."""


def look_up(who: str, name: Name) -> Any:
    """Return a private name of torch for `who`, which the error names.

    Raises:
        UnsupportedError: this version has no such name.
    """
    module, attribute = name
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"{who} needs {module}.{attribute}, which torch {torch.__version__} does not have"
        ) from error


def check(who: str, names: Iterable[Name]) -> None:
    """Look every name up, before Dynamo is between this and the user.

    Raises:
        UnsupportedError: this version lacks one.
    """
    for name in names:
        look_up(who, name)
