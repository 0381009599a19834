"""What Python asks of a tensor, yes or no or a number, answered otherwise for a while, in one thread.

`if x.mean() > 0:` and `x.mean().item()` reach Python through two methods of `torch.Tensor`, which it inherits from C.
While somebody answers in their place the class has its own, which ask those who answer in this thread, the last one
first, and then the method that was there. When nobody answers any more, the class is as it was.
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
"""How many answer, in whichever thread."""
_before: dict[str, Any] = {}
"""What the class itself had: nothing, or what somebody else put there."""


@contextlib.contextmanager
def answering(as_bool: Answerer, item: Answerer) -> Iterator[None]:
    """Answer what is asked in this thread meanwhile.

    Args:
        as_bool: answers `bool(tensor)`, and so what `if`, `while`, `not`, `and` and `or` ask.
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
                # Where Dynamo breaks a graph at a question, it would trace what answers that.
                setattr(torch.Tensor, name, torch.compiler.disable(_method(name, getattr(torch.Tensor, name))))
            elif not _answering and _before[name] is None:
                delattr(torch.Tensor, name)
            elif not _answering:
                setattr(torch.Tensor, name, _before[name])


def _method(name: str, plain: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    @functools.wraps(plain)  # whoever overrides it goes by its name
    def asked(tensor: torch.Tensor) -> Any:
        for answerers in reversed(vars(_mine).get("answerers", ())):
            if (answer := answerers[name](tensor)) is not NotImplemented:
                return answer
        return plain(tensor)

    return asked
