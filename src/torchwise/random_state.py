"""Python's own random numbers, which belong to the user's program."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_random() -> Iterator[None]:
    """Restore the state of `random` afterwards: rich draws from it when it is imported, and when it styles links."""
    before = random.getstate()
    try:
        yield
    finally:
        random.setstate(before)
