"""The state that calls leave behind and replays do not: buffers of modules, and values that functions keep in Python.

A module's state is restored after its call was recorded, as a recording must not count as a call. It is the buffers,
and the values of all tensors that existed before. Other state stays, such as a cache of positions that the first call
creates, because the recorded graph reads it from then on. A count or the time in Python is found, to be refused.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.compile.signature import is_plain, plain_key
from torchwise.workload import pytree
from torchwise.workload.module_state import State


@dataclass(frozen=True, slots=True)
class KeptBuffer:
    """A buffer before the recording: its holder, its tensor, and its values.

    A model may write to the tensor, as batch-norm does, or assign another, `self.mean = 0.9 * self.mean + …`. Then the
    old tensor is set again, as other graphs may use its address.
    """

    holder: torch.nn.Module
    name: str
    tensor: torch.Tensor
    values: torch.Tensor

    def put_back(self) -> None:
        """Restore it, and write only if something changed, so that versions stay.

        A buffer with a new device, shape or dtype is a cache that grew. It stays, as the model keeps its length
        elsewhere.
        """
        now = getattr(self.holder, self.name, None)
        if now is None or any(getattr(now, a) != getattr(self.values, a) for a in ("shape", "dtype", "device")):
            return
        if now is not self.tensor:
            setattr(self.holder, self.name, self.tensor)
        if not pytree.equal(self.tensor, self.values):  # NaN counts as equal here, and is not written again
            pytree.write(self.tensor, self.values)


def buffers_of(*modules: torch.nn.Module) -> Iterator[KeptBuffer]:
    """Copy the buffers of modules, a shared one only once. Parameters and other state are ignored."""
    copies: dict[int, torch.Tensor] = {}
    for holder in dict.fromkeys(part for module in modules for part in module.modules()):
        for name, buffer in holder.named_buffers(recurse=False, remove_duplicate=False):
            if id(buffer) not in copies:
                copies[id(buffer)] = buffer.detach().clone()
            yield KeptBuffer(holder, name, buffer, copies[id(buffer)])


@contextmanager
def kept_buffers(module: torch.nn.Module | None) -> Iterator[None]:
    """Restore a module's buffers at the end, such as batch-norm statistics."""
    kept, state = list(buffers_of(module)) if module is not None else [], State.from_call(module)
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer in kept:
                buffer.put_back()
        state.restore_values()


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
