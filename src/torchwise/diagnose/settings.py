"""Read settings of PyTorch in their printed form, and apply them temporarily."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from typing import Any

from torchwise._torch import dynamo

_SETTING = re.compile(
    r"(?P<module>torch\.[\w.]*config)\.(?P<name>\w+)(?: = (?P<value>True|False)|\.add\((?P<added>.+)\))$"
)


def argument(setting: str) -> str:
    """Return the value that a setting such as Dynamo's "config.x.add(print)" adds to a set, or "" for a flag."""
    hit = _SETTING.match(setting)
    return (hit["added"] or "") if hit else ""


@contextlib.contextmanager
def patched(setting: str, names: dict[str, Any] | None = None) -> Iterator[None]:
    """Apply a setting of PyTorch, such as Dynamo's "config.x = True" or "config.x.add(print)".

    Args:
        setting: as it is printed.
        names: the names that it may use beside Python's own.

    Raises:
        ValueError: it has another form.
    """
    hit = _SETTING.match(setting)
    if hit is None:
        raise ValueError(f"setting is {setting!r}, but must be such as {dynamo.CONFIG}.name = True")
    config = importlib.import_module(hit["module"])
    value = hit["value"] == "True"
    if hit["added"]:
        value = {*getattr(config, hit["name"]), eval(hit["added"], dict(names or {}))}
    with config.patch({hit["name"]: value}):
        yield
