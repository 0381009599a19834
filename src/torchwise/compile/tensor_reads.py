"""Python's questions about a tensor, yes or no or a number, answered differently for a while, in one thread.

`if x.mean() > 0:` and `x.mean().item()` reach Python through two methods of `torch.Tensor`, which it inherits from C.
While somebody answers in their place, the class has methods of its own. They ask those who answer in this thread, the
last one first, and then the former method. When nobody answers any more, the class is as it was.
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
_mine = threading.local()
_answering = 0
"""How many answer, in all threads."""
_before: dict[str, Any] = {}
"""The class's own attributes from before: nothing, or methods that somebody else put there."""


@contextlib.contextmanager
def answering(as_bool: Answerer, item: Answerer) -> Iterator[None]:
    """Answer the questions of this thread meanwhile.

    Args:
        as_bool: answers `bool(tensor)`, and so `if`, `while`, `not`, `and` and `or`.
        item: answers `tensor.item()`.
    """
    mine: list[dict[str, Answerer]] = vars(_mine).setdefault("answerers", [])
    mine.append(dict(zip(METHODS, (as_bool, item), strict=True)))
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        mine.pop()


def _count(more: int) -> None:
    """Put the methods in place for the first who answers, and take them away after the last."""
    global _answering
    with _installing:
        before, _answering = _answering, _answering + more
        for name in METHODS:
            if not before:
                _before[name] = vars(torch.Tensor).get(name)
                # If Dynamo breaks a graph at a question, it would otherwise trace the code that answers it.
                setattr(torch.Tensor, name, torch.compiler.disable(_method(name, getattr(torch.Tensor, name))))
            elif not _answering and _before[name] is None:
                delattr(torch.Tensor, name)
            elif not _answering:
                setattr(torch.Tensor, name, _before[name])


def _method(name: str, plain: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    @functools.wraps(plain)  # code that overrides it goes by its name
    def read_tensor(tensor: torch.Tensor) -> Any:
        for answerers in reversed(vars(_mine).get("answerers", ())):
            if (answer := answerers[name](tensor)) is not NotImplemented:
                return answer
        return plain(tensor)

    return read_tensor
