"""Intercept Python's reads of a tensor's value as a bool or a number, temporarily and in one thread.

`if x.mean() > 0:` and `x.mean().item()` reach Python through two methods of `torch.Tensor`, which it inherits from C.
While there are interceptors, the class has methods of its own. They call the interceptors of this thread, the last one
first, and then the former method. Without interceptors, the class is restored.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

Answerer = Callable[[torch.Tensor], Any]
"""Returns the answer, or NotImplemented to leave it to others."""

METHODS = ("__bool__", "item")

_installing = threading.Lock()
_thread_state = threading.local()
_answering = 0
"""How many answer, in all threads."""
_before: dict[str, Any] = {}
"""The class's former attributes: none, or methods that other code set."""


@contextlib.contextmanager
def answering(as_bool: Answerer, item: Answerer) -> Iterator[None]:
    """Intercept the reads of this thread in this context.

    Args:
        as_bool: answers `bool(tensor)`, and so `if`, `while`, `not`, `and` and `or`.
        item: answers `tensor.item()`.
    """
    interceptors: list[dict[str, Answerer]] = vars(_thread_state).setdefault("answerers", [])
    interceptors.append(dict(zip(METHODS, (as_bool, item), strict=True)))
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        interceptors.pop()


def _count(more: int) -> None:
    """Put the methods in place for the first who answers, and take them away after the last."""
    global _answering
    with _installing:
        before, _answering = _answering, _answering + more
        for name in METHODS:
            if not before:
                _before[name] = vars(torch.Tensor).get(name)
                # If Dynamo breaks a graph at a read, it would otherwise trace the interceptor.
                setattr(torch.Tensor, name, torch.compiler.disable(_method(name, getattr(torch.Tensor, name))))
            elif not _answering and _before[name] is None:
                delattr(torch.Tensor, name)
            elif not _answering:
                setattr(torch.Tensor, name, _before[name])


def _method(name: str, plain: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    @functools.wraps(plain)  # code that overrides it goes by its name
    def read_tensor(tensor: torch.Tensor) -> Any:
        for answerers in reversed(vars(_thread_state).get("answerers", ())):
            if (answer := answerers[name](tensor)) is not NotImplemented:
                return answer
        return plain(tensor)

    return read_tensor
