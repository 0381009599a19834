"""Find the parts of a model that a rewrite may change, so that the error or the loss of quality stays allowed.

Each part is changed alone, and the error that it causes is measured. The parts that cause the least error for their
size come first. The longest beginning of that order which passes the user's own limit is found by halving: every
selection that is returned has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torchwise.verify.substitution import measure_error
from torchwise.workload.workload import Example

MAX_S = 20.0
"""Seconds for measuring parts by themselves. The smallest, which come last, stay as they are after that."""
JUDGE_S = 20.0
"""Seconds for judging selections of parts after that. The largest that has passed until then counts."""
MIN_SHARE = 0.2
"""Share of the sizes of all parts that a selection must have: less saves too little for another trial."""

Rewrite = Callable[[Collection[str]], Callable[..., Any]]
"""Takes the names of the parts that stay as they are, and returns the model with the others changed."""


def choose_skipped(
    original: Callable[..., Any],
    rewrite: Rewrite,
    sizes: Mapping[str, int],
    passes: Callable[[Callable[..., Any]], bool],
    example: Example,
    budget_s: float = MAX_S,
    judge_s: float = JUDGE_S,
) -> tuple[str, ...] | None:
    """Return the parts to leave as they are so that the rest passes, or None if too little would be left to change.

    Args:
        original: the model.
        rewrite: makes a model with some parts changed.
        sizes: the size of each part, by name.
        passes: whether a changed model is allowed.
        example: input to measure the errors of the parts on.
        budget_s: seconds for that.
        judge_s: seconds for judging selections.
    """
    errors: dict[str, float] = {}
    end = time.monotonic() + budget_s
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if time.monotonic() < end:
            errors[name] = measure_error(original, rewrite([other for other in sizes if other != name]), example)
    order = sorted(errors, key=lambda name: errors[name] ** 2 / sizes[name])  # errors add up by their squares
    failing = len(order) + (len(order) < len(sizes))  # all parts together do not pass
    end = time.monotonic() + judge_s
    changed = order[
        : _count_passing(order, failing, lambda kept: passes(rewrite([n for n in sizes if n not in kept])), end)
    ]
    if sum(sizes[name] for name in changed) < MIN_SHARE * sum(sizes.values()):
        return None
    return tuple(name for name in sizes if name not in changed)


def _count_passing(order: Sequence[str], failing: int, passes: Callable[[Sequence[str]], bool], end: float) -> int:
    """Return how many of the first names pass together, fewer than `failing`. More of them are assumed no better.

    After `end` no more are tried.
    """
    passing = 0
    while failing - passing > 1 and time.monotonic() < end:
        middle = (passing + failing) // 2
        passing, failing = (middle, failing) if passes(order[:middle]) else (passing, middle)
    return passing
