"""Python's own random numbers, which belong to the user's program."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_random() -> Iterator[None]:
    """Put the state of `random` back afterwards: rich draws from it as it is imported, and where it styles links."""
    before = random.getstate()
    try:
        yield
    finally:
        random.setstate(before)
