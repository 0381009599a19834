"""Find the smallest part of something that still has a property.

Source: Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, IEEE TSE 28(2), 2002 (`ddmin`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal(items: Sequence[T], holds: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Return a part of `items` that has the property, but not without any one of its items.

    Args:
        items: as a whole they have the property, which is not checked again.
        holds: whether some items, in their order, have the property. It is called once for each part.
    """
    known: dict[tuple[int, ...], bool] = {}

    def still(places: Sequence[int]) -> bool:
        key = tuple(places)
        if key not in known:
            known[key] = holds(tuple(items[place] for place in key))
        return known[key]

    kept, pieces = list(range(len(items))), 2
    while len(kept) >= 2:
        chunks = _chunks(kept, pieces)
        # With two pieces, the rest without one piece is the other piece.
        rests = [[p for p in kept if p not in set(chunk)] for chunk in chunks] if pieces > 2 else []
        if (chunk := next((c for c in chunks if still(c)), None)) is not None:
            kept, pieces = chunk, 2
        elif (rest := next((r for r in rests if still(r)), None)) is not None:
            kept, pieces = rest, max(pieces - 1, 2)
        elif pieces < len(kept):
            pieces = min(2 * pieces, len(kept))
        else:
            break
    return tuple(items[place] for place in kept)


def first(count: int, shows: Callable[[int], bool]) -> int:
    """Return the smallest n for which `shows(n)` by bisection, if `shows(count)` and not `shows(0)`."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def _chunks(items: list[int], pieces: int) -> list[list[int]]:
    bounds = [len(items) * piece // pieces for piece in range(pieces + 1)]
    return [items[low:high] for low, high in itertools.pairwise(bounds) if high > low]
