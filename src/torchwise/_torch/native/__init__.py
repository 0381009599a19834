"""The checks of each call in C++, if they were compiled on this machine, or None: then Python makes them.

They are compiled once, by `torchwise doctor` or before a search (`compiler.py`), whose trials then call as a program
that serves will. Such a program only loads them. `TORCHWISE_NATIVE=0` leaves all checks to Python.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from torchwise._torch.native.library import Library, UnusableError

logger = logging.getLogger("torchwise")

VARIABLE = "TORCHWISE_NATIVE"
OFF = ("0", "false", "off", "no")
COMPILING = "compiling the checks of calls, once"


def is_off() -> bool:
    """Whether the user leaves all checks to Python."""
    return os.environ.get(VARIABLE, "").strip().lower() in OFF


def load_checks() -> ModuleType | None:
    """Return the compiled checks, or None if they are switched off, not compiled, or not to be trusted."""
    return None if is_off() else _load()


def ensure_compiled(tell: Callable[[str], object]) -> str | None:
    """Compile the checks for the programs to come, if that was not done. Return why there are none, or None.

    Args:
        tell: called with a text before the compiler runs.
    """
    if is_off():
        return f"{VARIABLE} is {os.environ[VARIABLE]}"
    from torchwise._torch.native.compiler import compile_checks

    try:
        library = Library()
        if library.find_obstacle() is None and not library.file.exists():
            tell(COMPILING)
        if compile_checks(library):
            _load.cache_clear()  # this program may have looked for them in vain
    except UnusableError as error:
        return str(error)
    except OSError as error:  # such as a cache folder that cannot be read
        return f"{type(error).__name__}: {error}"
    return None


@functools.cache
def _load() -> ModuleType | None:
    try:
        return Library().load()
    except UnusableError as error:
        logger.debug("torchwise: Python checks the calls, as %s", error)
    except Exception as error:  # whatever a library does when it is loaded, the checks in Python do the same
        logger.warning("torchwise: Python checks the calls, as the compiled checks fail to load", exc_info=error)
    return None


class Watch(Protocol):
    """A check in C++ that everything is as it was. It asks the check in Python, which it was made with, if not."""

    def __call__(self) -> Any:
        """Return the answer of the check in Python, or without asking it, the one that says that nothing changed."""

    def reset(
        self,
        dicts: tuple[Any, ...],
        objects: tuple[tuple[Any, type], ...],
        hooks: tuple[tuple[Any, tuple[Any, ...]], ...],
        tensors: tuple[Any, ...],
        code: tuple[Any, ...] | None,
        modes: tuple[Any, ...] | None,
    ) -> None:
        """Take the present state as the reference.

        Args:
            dicts: dicts that must not be written to.
            objects: objects with their classes.
            hooks: dicts of hooks, with the numbers of the hooks in their order.
            tensors: tensors whose form and memory must stay.
            code: functions, those with defaults, those with defaults by name, and the lists of codes and defaults.
            modes: of `dispatch.list_modes`.
        """


def make_watch(closely: Callable[[], Any], *, is_boolean: bool) -> Watch | None:
    """Return a watch that asks `closely` about every difference, or None without compiled checks.

    Args:
        closely: returns None if nothing changed, or True if `is_boolean`.
        is_boolean: whether it returns a boolean.
    """
    checks = load_checks()
    if checks is None:
        return None
    watch: Watch = checks.Watch(closely, is_boolean)
    return watch


class Replay(Protocol):
    """A captured call in C++, where inputs and outputs lie as at a recording. It leaves all else to Python."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a call of the signature that it was made for."""

    def take(
        self,
        graphs: dict[tuple[int, ...], tuple[Callable[[], None], Any]] = ...,
        places: tuple[int, ...] = ...,
        written: tuple[int, ...] = ...,
        makers: tuple[Callable[[], Any], ...] = ...,
        pack: Callable[[list[Any]], Any] | None = ...,
        settled: Callable[[], bool] = ...,
        lends: bool = ...,
        checks_first: bool = ...,
        /,
    ) -> None:
        """Answer by these graphs from now on, or without arguments leave all calls to Python.

        Args:
            graphs: by the addresses of inputs and outputs, a replay and the outputs of the graph itself.
            places: the positions of the tensors in the arguments.
            written: the positions of those that the call writes to.
            makers: functions that allocate the outputs.
            pack: puts a list of outputs in their containers. None is for the one output, as it is.
            settled: returns whether PyTorch's settings are those of the recording.
            lends: whether the outputs of the graph itself are returned.
            checks_first: whether the module is looked at before a replay, and not meanwhile.
        """


Fact = tuple[Callable[..., Any], tuple[Any, ...], list[Any]]
"""A function without side effects, its argument if it has one, and in a list the answer that it has to give."""


def make_replay(
    otherwise: Callable[..., Any],
    again: Callable[..., Any],
    guard: Any,
    lock: threading.Lock,
    holder: list[int | None],
    facts: tuple[Fact, ...],
) -> Replay | None:
    """Return a captured call in C++, or None without compiled checks.

    Args:
        otherwise: answers all other calls.
        again: answers a call under the lock, if the module turns out to have changed after a replay.
        guard: has `is_unchanged` and `has_changed` of the module (`ModuleGuard`).
        lock: is held during a replay.
        holder: a list, whose one entry says which thread holds the lock.
        facts: all that must hold for a replay: the stream, the GPU, and that nobody records a graph.
    """
    checks = load_checks()
    if checks is None:
        return None
    replay: Replay = checks.Replay(otherwise, again, guard, lock.acquire, lock.release, holder, facts)
    return replay


def enter(kind: type, by_torch: object, served: type, *, has_hooks: bool) -> bool:
    """Have compiled checks, if there are any, take the calls of a class of wrappers. Return whether they do.

    They answer those of a decision for eager, before which next to nothing may stand, and the usual ones of a plan.
    They leave others to the `__call__` of the class, which stays in Python. To assign that attribute takes the calls
    back.

    Args:
        kind: the class.
        by_torch: the call of a module for which its `_call_impl` will do, or None if none is.
        served: the class that answers by a plan (`runtime.dispatch.Dispatcher`), whose subclasses stay in Python.
        has_hooks: whether wrappers have hooks of their own, as modules do, which must be empty.
    """
    checks = load_checks()
    if checks is not None:
        from torch import is_autocast_enabled

        checks.enter(kind, has_hooks, by_torch, served, is_autocast_enabled)
    return checks is not None
