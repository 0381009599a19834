"""Repetitions in a sequence of labels: pure arithmetic, which knows nothing of graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_TIMES = 3
"""Minimum number of repetitions. Compiling a body of its own does not pay if it runs only twice."""
MIN_BODY = 2
"""Minimum number of labels in a body: a single operator is not compiled."""
MIN_SHARE = 0.5
"""The least share of the sequence that repetitions must cover. Below it, compiling the rest takes most of the time."""
MIN_RUN = 0.1
"""The least share of the sequence for each of several repetitions: each cuts, and nothing is fused across a cut."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """Labels from `start` up to `stop`, each equal to the one `period` before it, if that is in the stretch."""

    start: int
    stop: int
    period: int

    @property
    def times(self) -> int:
        """How often the period fits in."""
        return (self.stop - self.start) // self.period

    @property
    def whole_periods(self) -> Repetition:
        """The same without the part of a period at its end."""
        return Repetition(self.start, self.start + self.times * self.period, self.period)


Verifier = Callable[[Repetition], Repetition | None]
"""Returns the part of a stretch that truly repeats, a whole number of times, or None."""


def repetitions(
    labels: Sequence[Hashable], verify: Verifier = lambda stretch: stretch.whole_periods
) -> list[Repetition]:
    """Return disjoint stretches that repeat, in order: the longest that `verify` accepts, and others around it.

    Labels are compared as they are. `verify` must find out whether everything else is equal.
    """
    numbers = _number_labels(labels)
    least = max(MIN_TIMES * MIN_BODY, int(MIN_RUN * len(numbers)))
    return list(_repetitions(numbers, 0, len(numbers), least, verify))


def covers(stretches: Sequence[Repetition], length: int) -> bool:
    """Whether the stretches are the better part of a sequence of that length."""
    return bool(stretches) and sum(s.stop - s.start for s in stretches) >= MIN_SHARE * length


def longest_by_period(numbers: npt.NDArray[np.int64]) -> list[Repetition]:
    """Return the longest stretch for every period, the longest first, and the shortest period first if they are equal.

    Only stretches of at least `MIN_TIMES` periods count.
    """
    found = []
    for period in range(MIN_BODY, len(numbers) // MIN_TIMES + 1):
        equal = numbers[period:] == numbers[:-period]
        least = (MIN_TIMES - 1) * period
        if np.count_nonzero(equal) < least:
            continue
        start, length = _longest_true(equal)
        if length >= least:
            found.append(Repetition(start, start + length + period, period))
    return sorted(found, key=lambda s: (-s.times * s.period, s.period))


def _repetitions(
    numbers: npt.NDArray[np.int64], start: int, stop: int, least: int, verify: Verifier
) -> Iterator[Repetition]:
    best = _best(numbers, start, stop, least, verify)
    if best is not None:
        yield from _repetitions(numbers, start, best.start, least, verify)
        yield best
        yield from _repetitions(numbers, best.stop, stop, least, verify)


def _best(numbers: npt.NDArray[np.int64], start: int, stop: int, least: int, verify: Verifier) -> Repetition | None:
    best: Repetition | None = None
    if stop - start < least:
        return None
    for candidate in longest_by_period(numbers[start:stop])[:_MAX_VERIFIED]:
        if best is not None and candidate.times * candidate.period <= best.stop - best.start:
            break  # verification makes no stretch longer
        verified = verify(Repetition(candidate.start + start, candidate.stop + start, candidate.period))
        if verified is not None and verified.stop - verified.start >= max(
            least, best.stop - best.start + 1 if best else 0
        ):
            best = verified
    return best


_MAX_VERIFIED = 16
"""Maximum number of stretches that are verified in one place.

The longest come first, and if they are not accepted, shorter ones rarely are.
"""


def _number_labels(labels: Sequence[Hashable]) -> npt.NDArray[np.int64]:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


def _longest_true(mask: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return start and length of the longest row of True, the first of equal ones."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(starts[longest]), int(lengths[longest])
