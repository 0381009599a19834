"""Names of a package that are loaded on first use (PEP 562), and former names, which warn once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torchwise.former_packages import warn_once


def load_attributes(
    package: str, homes: Mapping[str, str], former: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: its `__name__`.
        homes: the module within it for each of its names.
        former: the names that some had before, with those that they have now.
    """

    def load(name: str) -> Any:
        if former and name in former:
            warn_once(f"{package}.{name}", f"{package}.{former[name]}")
            return getattr(sys.modules[package], former[name])
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # so that this is asked once
        return value

    return load
