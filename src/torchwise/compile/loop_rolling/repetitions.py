"""Repetitions in a sequence of labels, and those of a graph, verified equal by the values that flow through them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch

from torchwise.compile.loop_rolling.graph_index import GraphIndex
from torchwise.errors import UnsupportedError

MIN_TIMES = 3
"""Minimum number of repetitions. Compiling a body of its own does not pay if it runs only twice."""
MIN_BODY = 2
"""Minimum number of labels in a body: a single operator is not compiled."""
MIN_SHARE = 0.5
"""The least share of the sequence that repetitions must cover. Below it, compiling the rest takes most of the time."""
MIN_RUN = 0.1
"""The least share of the sequence for each of several repetitions: each cuts, and nothing is fused across a cut."""
MAX_TURNS = 8
"""Places in a period that are tried as its beginning, narrowest first: later ones are no loops."""
_MAX_VERIFIED = 16
"""Maximum number of stretches that are verified in one place.

The longest come first, and if they are not accepted, shorter ones rarely are.
"""


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
    labels: Sequence[Hashable],
    verify: Verifier = lambda stretch: stretch.whole_periods,
    *,
    least_body: int = MIN_BODY,
) -> list[Repetition]:
    """Return disjoint stretches that repeat, in order: the longest that `verify` accepts, and others around it.

    Labels are compared as they are. `verify` must find out whether everything else is equal. A period has `least_body`
    labels or more.
    """
    numbers = _number_labels(labels)
    least = max(MIN_TIMES * least_body, int(MIN_RUN * len(numbers)))
    return list(_repetitions(numbers, 0, len(numbers), least, functools.partial(_best, verify, least_body)))


def covers(stretches: Sequence[Repetition], length: int) -> bool:
    """Whether the stretches are the better part of a sequence of that length."""
    return bool(stretches) and sum(s.stop - s.start for s in stretches) >= MIN_SHARE * length


def longest_by_period(numbers: npt.NDArray[np.int64], least_body: int = MIN_BODY) -> list[Repetition]:
    """Return the longest stretch for every period, the longest first, and the shortest period first if they are equal.

    Only stretches of at least `MIN_TIMES` periods count.
    """
    found = []
    for period in range(least_body, len(numbers) // MIN_TIMES + 1):
        equal = numbers[period:] == numbers[:-period]
        least = (MIN_TIMES - 1) * period
        if np.count_nonzero(equal) < least:
            continue
        start, length = _longest_true(equal)
        if length >= least:
            found.append(Repetition(start, start + length + period, period))
    return sorted(found, key=lambda s: (-s.times * s.period, s.period))


def _repetitions(
    numbers: npt.NDArray[np.int64], start: int, stop: int, least: int, find: Callable[..., Repetition | None]
) -> Iterator[Repetition]:
    best = find(numbers, start, stop, least)
    if best is not None:
        yield from _repetitions(numbers, start, best.start, least, find)
        yield best
        yield from _repetitions(numbers, best.stop, stop, least, find)


def _best(
    verify: Verifier, least_body: int, numbers: npt.NDArray[np.int64], start: int, stop: int, least: int
) -> Repetition | None:
    best: Repetition | None = None
    if stop - start < least:
        return None
    for candidate in longest_by_period(numbers[start:stop], least_body)[:_MAX_VERIFIED]:
        if best is not None and candidate.times * candidate.period <= best.stop - best.start:
            break  # verification makes no stretch longer
        verified = verify(Repetition(candidate.start + start, candidate.stop + start, candidate.period))
        if verified is not None and verified.stop - verified.start >= max(
            least, best.stop - best.start + 1 if best else 0
        ):
            best = verified
    return best


def _number_labels(labels: Sequence[Hashable]) -> npt.NDArray[np.int64]:
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)


def _longest_true(mask: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return start and length of the longest row of True, the first of equal ones."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(starts[longest]), int(lengths[longest])


def find_repeated(flow: GraphIndex) -> list[Repetition]:
    """Return the stretches of whole periods that may be computed by one body each, or refuse if too little repeats."""
    widths = _widths(flow)
    found = repetitions(flow.labels, lambda stretch: _find_longest_run(flow, stretch, widths))
    count = len(flow.nodes)
    if not found:
        raise UnsupportedError(f"of {count} operations none repeat {MIN_TIMES} times in the same way")
    if not covers(found, count):
        share = sum(s.stop - s.start for s in found)
        raise UnsupportedError(f"only {share} of {count} operations repeat {MIN_TIMES} times, which is less than half")
    if not flow.may_cut([cut for stretch in found for cut in cuts(stretch)]):
        raise UnsupportedError("the repeated part writes in place to a tensor that is used elsewhere")
    return found


def cuts(stretch: Repetition) -> list[int]:
    """List the beginning of a stretch and the end of each of its periods."""
    return list(range(stretch.start, stretch.stop + 1, stretch.period))


def outputs(flow: GraphIndex, stretch: Repetition) -> list[int]:
    """List the places in a period whose values are used after it, in any repetition."""
    starts = range(stretch.start, stretch.stop, stretch.period)
    return sorted({value - start for start in starts for value in flow.output_values(start, start + stretch.period)})


def key(flow: GraphIndex, start: int, stop: int) -> Hashable:
    """Return a key that two parts share exactly when they compute the same from values of the same form."""
    slots = {value: slot for slot, value in enumerate(flow.input_values(start, stop))}
    reads = tuple(
        tuple((True, r - start) if r not in slots else (False, slots[r]) for r in flow.reads[number])
        for number in range(start, stop)
    )
    memory = [flow.storages(value) for value in slots]
    shared = tuple((i, j) for j, one in enumerate(memory) for i in range(j) if one & memory[i])
    return flow.labels[start:stop], reads, tuple(map(flow.kind, slots)), shared


def _find_longest_run(flow: GraphIndex, stretch: Repetition, widths: list[int]) -> Repetition | None:
    """Return the longest row of equal periods in a stretch, begun where the fewest values cross the borders."""
    best: Repetition | None = None
    for turned in _list_rotations(stretch, widths):
        for run in _equal(flow, turned):
            longer = best is None or run.times > best.times + 1  # one period more is not worth a wider border
            if longer and _may_roll(flow, run):
                best = run
        if best is not None and best.times >= stretch.times - 1:
            break
    return best


def _list_rotations(stretch: Repetition, widths: list[int]) -> Iterator[Repetition]:
    period, stop = stretch.period, stretch.stop
    starts = range(stretch.start, min(stretch.start + period, stop - MIN_TIMES * period + 1))
    narrow = sorted(starts, key=lambda start: (max(widths[start + period : stop : period]), start))
    for start in narrow[:MAX_TURNS]:
        yield Repetition(start, stop, period).whole_periods


def _equal(flow: GraphIndex, stretch: Repetition) -> list[Repetition]:
    """List the rows of equal periods, the longest first."""
    period, found = stretch.period, []
    starts = range(stretch.start, stretch.stop, period)
    for _, group in groupby(starts, key=lambda start: key(flow, start, start + period)):
        equal = list(group)
        if len(equal) >= MIN_TIMES:
            found.append(Repetition(equal[0], equal[-1] + period, period))
    return sorted(found, key=lambda run: -run.times)


def _may_roll(flow: GraphIndex, run: Repetition) -> bool:
    """Whether only tensors cross the borders, no output is a view of an input, and writes in place stay inside."""
    places = outputs(flow, run)
    for start in range(run.start, run.stop, run.period):
        taken = flow.input_values(start, start + run.period)
        produced = [start + place for place in places]
        if not produced or any(flow.kind(value) is None for value in (*taken, *produced)):
            return False
        entering = frozenset().union(*map(flow.storages, taken))
        if any(flow.storages(value) & entering for value in produced):
            return False
    uses_addresses = any(_is_as_strided(flow, number) for number in range(run.start, run.start + run.period))
    return not uses_addresses and flow.may_cut(cuts(run))


def _is_as_strided(flow: GraphIndex, number: int) -> bool:
    """Whether a node reads memory by its offset, which differs for each view that comes in."""
    return flow.nodes[number].target in ("as_strided", torch.as_strided)


def _widths(flow: GraphIndex) -> list[int]:
    """Return the number of computed values alive before each node."""
    changes = [0] * (len(flow.nodes) + 2)
    for value, last in flow.last_use.items():
        if value >= 0:
            changes[value + 1] += 1
            changes[last + 1] -= 1
    widths, alive = [], 0
    for change in changes:
        alive += change
        widths.append(alive)
    return widths
