"""Plug-ins that register choices: those of installed packages, and those that `TORCHWISE_PLUGINS` names."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import pkgutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchwise.errors import InputError

VARIABLE = "TORCHWISE_PLUGINS"
GROUP = "torchwise.choices"
WAY_OUT = f"or register it in a package with an entry point of the group {GROUP}, or in a file that {VARIABLE} names"
"""The end of a message about a name that no choice describes."""

logger = logging.getLogger("torchwise")

_loading = threading.RLock()
"""Held while plug-ins load, so that no other thread goes on without their choices. A plug-in may build plans itself."""


def load_plug_ins() -> None:
    """Have every plug-in register its choices, once in a process. One that fails is left out with a warning."""
    with _loading:
        plug_ins = _list_plug_ins()
        while plug_ins:
            name, register = plug_ins.pop(0)
            try:
                register()
            except (Exception, SystemExit) as error:  # any may be raised, and plans without it are read all the same
                logger.warning("torchwise: the plug-in %s registers no choices (%r)", name, error)


@functools.cache
def _list_plug_ins() -> list[tuple[str, Callable[[], Any]]]:
    """List the plug-ins. They are taken from the list before they are called, as one may build plans itself."""
    installed = [(entry.value, functools.partial(_call_entry, entry)) for entry in _list_entries()]
    return [*installed, *((name, functools.partial(_run, name)) for name in list_named())]


def _list_entries() -> list[Any]:
    return list(importlib.metadata.entry_points(group=GROUP))


def _call_entry(entry: Any) -> None:
    entry.load()()


def list_named() -> list[str]:
    """Return the files, modules and functions that the environment names."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def check_named() -> None:
    """Refuse a plug-in that the user named and that cannot be loaded. The command line asks before all else.

    Raises:
        InputError: it is not there, or raises.
    """
    from torchwise.plan.choice import load_own_choices

    load_own_choices()  # first, as no plug-in may take the names of Torchwise's own
    for name in list_named():
        try:
            _run(name)
        except (Exception, SystemExit) as error:  # a plug-in may raise anything, and end as a program does
            raise InputError(
                f"{VARIABLE} has {name!r}, which fails ({type(error).__name__}: {error}): it must list Python files, "
                "modules, or functions as module:function, joined by commas"
            ) from error


@functools.cache
def _run(name: str) -> None:
    """Load a file or import a module, which registers its choices as it is run, or call a function of one."""
    if name.endswith(".py"):
        _load_file(Path(name).resolve())
    elif ":" in name:
        pkgutil.resolve_name(name)()
    else:
        importlib.import_module(name)


def _load_file(path: Path) -> None:
    name = f"torchwise_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and operators look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:  # also an exit or an interrupt in the file: the half of a module is not left behind
        del sys.modules[name]
        raise
