"""Values that a function keeps in Python between calls, such as a count or the time: a replay does not update them."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torchwise.compile.signature import is_plain, plain_key

Surroundings = dict[str, Any]


def read_python_state(call: Callable[..., Any]) -> Surroundings:
    """Return the numbers and strings that a function can rebind, and the state of Python's random numbers.

    It reads the function's closure and the functions in it, the globals that it names, and the attributes of its bound
    object. It does not read the contents of lists, dicts and other objects.
    """
    state = {name: plain_key(value) for name, value in _values(call, nested=True) if is_plain(value)}
    return state | generators()


def generators() -> Surroundings:
    """Return the states of Python's and NumPy's generators of random numbers."""
    states: Surroundings = {"Python's random numbers": random.getstate()}
    if numpy := sys.modules.get("numpy"):
        states["NumPy's random numbers"] = pickle.dumps(numpy.random.get_state(legacy=False))
    return states


def find_difference(before: Surroundings, after: Surroundings) -> str | None:
    """Return the name of a value that changed, or None."""
    return next((name for name in after if name not in before or before[name] != after[name]), None)


def _values(call: Any, *, nested: bool) -> Iterator[tuple[str, Any]]:
    owner = getattr(call, "__self__", None)
    function = getattr(call, "__func__", call)
    code = getattr(function, "__code__", None)
    if code is None:  # a callable object
        owner, code = call, getattr(type(call).__call__, "__code__", None)
        function = type(call).__call__
    if code is not None:
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                value = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            yield name, value
            if nested and callable(value) and not isinstance(value, type):
                yield from _values(value, nested=False)
    for name, value in getattr(owner, "__dict__", {}).items():
        yield f"self.{name}", value
