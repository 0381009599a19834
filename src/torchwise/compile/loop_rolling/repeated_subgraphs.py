"""Stretches of a graph that do the same again and again, verified equal by the values that flow through them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import groupby

import torch

from torchwise.compile.loop_rolling.graph_index import GraphIndex
from torchwise.compile.loop_rolling.periods import MIN_TIMES, Repetition, covers, repetitions
from torchwise.errors import UnsupportedError

MAX_TURNS = 8
"""Places in a period that are tried as its beginning, narrowest first: later ones are no loops."""


def find_repeated(flow: GraphIndex) -> list[Repetition]:
    """Return the stretches of whole periods that may be computed by one body each.

    Raises:
        UnsupportedError: nothing repeats, or too little, with the figures.
    """
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
