"""Inductor's autotuning: the candidates that it timed for a matrix product or a convolution, as they are timed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torchwise._torch.private_name import PrivateName
from torchwise.errors import UnsupportedError

SELECTOR = PrivateName("torch._inductor.select_algorithm", "get_algorithm_selector_cache")
"""Returns the object that chooses between candidates. Each of its `feedback_saver_fns` is called with their times."""

Timed = Callable[[str, tuple[str, ...], dict[str, float]], None]


@contextlib.contextmanager
def tell_candidates(tell: Timed) -> Iterator[None]:
    """Call `tell` for each autotuned operator in the block: its name, its inputs, and seconds by candidate.

    In a version of PyTorch that does not report candidates, nothing is told.
    """

    def save(timings: dict[Any, float], name: str, inputs: list[Any], *_more: Any) -> None:
        with contextlib.suppress(Exception):  # a compilation must not fail because nobody could describe its operator
            named = {str(getattr(one, "name", one)): ms / 1e3 for one, ms in timings.items()}
            tell(name, tuple(map(_describe, inputs)), named)

    try:
        functions: list[Any] = SELECTOR.get()().feedback_saver_fns
    except (UnsupportedError, AttributeError):
        yield
        return
    functions.append(save)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a reset of Inductor's caches may have emptied the list
            functions.remove(save)


def _describe(node: Any) -> str:
    size = "×".join(map(str, node.get_size()))
    return f"{str(node.get_dtype()).removeprefix('torch.')}[{size}]"
