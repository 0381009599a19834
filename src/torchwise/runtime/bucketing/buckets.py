"""Choose between static plans, a dynamic plan and buckets by the observed sizes, and the buckets that cost least."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from torchwise.errors import InputError, is_count
from torchwise.former_names import renamed_arguments
from torchwise.keywords import checked_keywords
from torchwise.records.shown import Shown

STATIC_SHARE = 0.99
"""Share of calls that the most frequent sizes need for static plans. The original answers the other sizes."""
MAX_PADDED = 0.25
"""Share of padding above which one dynamic plan is better than buckets."""
MIN_WITHIN = 0.5
"""Minimum share of calls that the rule covers. Below it, one dynamic plan is better."""

MAX_BUCKETS = 8
"""Default number of buckets: PyTorch compiles code for no more signatures of a function (`recompile_limit`)."""
MAX_DISTINCT = 2048
"""Maximum number of distinct sizes. More are rounded up, so that the search takes less than a second."""

Cost = Callable[[int], float]


def histogram_of(sizes: Mapping[int, float] | Iterable[int]) -> dict[int, float]:
    """Return observed sizes with their weights, ascending.

    Args:
        sizes: counts by size, or one size per call.

    Raises:
        InputError: there is none, a size is below 1, or a weight is not above 0.
    """
    found = dict(sizes) if isinstance(sizes, Mapping) else dict(Counter(sizes))
    if not found:
        raise InputError("sizes is empty, but at least one size must have been seen")
    for size, weight in found.items():
        if not is_count(size):
            raise InputError(f"a size is {size!r}, but must be a whole number of at least 1")
        if not 0 < weight < float("inf"):
            raise InputError(f"the weight of size {size} is {weight!r}, but must be above 0 and finite")
    return dict(sorted(found.items()))


@checked_keywords()
def buckets_for(
    sizes: Mapping[int, float] | Iterable[int], count: int = MAX_BUCKETS, *, cost: Cost = float
) -> tuple[int, ...]:
    """Return the cheapest buckets, ascending. The largest bucket is the largest size seen.

    This is an exact dynamic programme over the observed sizes, as no bucket between two of them can be better. The
    problem is known from stocking lengths of steel, which are cut to the lengths that customers order.

    Source: M. L. Wolfson, "Selecting the best lengths to stock", Operations Research 13 (1965).

    Args:
        sizes: as for `histogram_of`.
        count: number of buckets. There are fewer if fewer sizes were seen.
        cost: the cost of a call by its size, by default proportional to the size. It must not fall with the size. A
            constant added for every call changes nothing.

    Raises:
        InputError: `count` is below 1, or as for `histogram_of`.
    """
    check_count(count)
    histogram = _coarsen_sizes(histogram_of(sizes))
    known = list(histogram)
    if len(known) <= count:
        return tuple(known)
    costs = np.array([cost(size) for size in known])
    weights = np.concatenate([[0.0], np.cumsum(list(histogram.values()))])
    best = costs * weights[1:]  # with one bucket, for the sizes up to each
    chosen: list[np.ndarray] = []
    for _ in range(count - 1):
        before = np.concatenate([[0.0], best])
        came = np.array([np.argmin(before[: j + 1] - costs[j] * weights[: j + 1]) for j in range(len(known))])
        best = before[came] + costs * (weights[1:] - weights[came])
        chosen.append(came)
    return tuple(known[place] for place in _trace_back(chosen, len(known) - 1))


def check_count(count: int) -> None:
    """Refuse an invalid number of buckets.

    Raises:
        InputError: it is below 1.
    """
    if not is_count(count):
        raise InputError(f"count is {count!r}, but must be a whole number of at least 1")


def padded_share(sizes: Mapping[int, float] | Iterable[int], buckets: Sequence[int]) -> float:
    """Return the padded share of the computed sizes, 0 to 1, over the sizes up to the largest bucket."""
    padding = total = 0.0
    for size, weight in histogram_of(sizes).items():
        if size <= buckets[-1]:
            bucket = buckets[bisect_left(buckets, size)]
            padding += weight * (bucket - size)
            total += weight * bucket
    return padding / total if total else 0.0


def _trace_back(chosen: list[np.ndarray], last: int) -> list[int]:
    """Trace the buckets back from the largest size. Each table holds the number of sizes left to smaller buckets."""
    places = [last]
    for came in reversed(chosen):
        left = int(came[places[0]])
        if left == 0:
            break
        places.insert(0, left - 1)
    return places


def _coarsen_sizes(histogram: dict[int, float]) -> dict[int, float]:
    """Round sizes up to `MAX_DISTINCT` sizes, each for an equal share of the sorted sizes."""
    if len(histogram) <= MAX_DISTINCT:
        return histogram
    known = list(histogram)
    step = -(-len(known) // MAX_DISTINCT)
    rounded: dict[int, float] = {}
    for place, (_, weight) in enumerate(histogram.items()):
        size = known[min((place // step + 1) * step, len(known)) - 1]
        rounded[size] = rounded.get(size, 0.0) + weight
    return rounded


@dataclass(frozen=True, slots=True)
class Choice(Shown):
    """The best way to run these sizes, and why.

    Attributes:
        kind: "static" (a plan for each of a few sizes), "buckets" (padding to a few sizes) or "dynamic" (one plan for
            every size).
        sizes: the sizes to tune on: the static sizes, the buckets, or three that represent all sizes.
        reason: the reason, in one sentence.
    """

    kind: Literal["static", "buckets", "dynamic"]
    sizes: tuple[int, ...]
    reason: str

    def __repr__(self) -> str:
        return f"<Choice of {self.kind} at {', '.join(map(str, self.sizes))}: {self.reason}>"


@renamed_arguments(verified="proven")
@checked_keywords()
def choose(
    sizes: Mapping[int, float] | Iterable[int],
    *,
    verified: bool,
    count: int = MAX_BUCKETS,
    least: int = 1,
    most: int | None = None,
) -> Choice:
    """Choose by the observed sizes.

    If a few sizes are nearly all calls, they need neither padding nor a dynamic plan. Otherwise sizes are padded if a
    verified rule covers most calls and adds little padding.

    Args:
        sizes: counts by size, or one size per call.
        verified: whether there is a rule for padding that `verify_padding` verified.
        count: maximum number of sizes with a plan.
        least: the smallest size to pad. The original answers smaller ones.
        most: the largest size to pad to. The original answers larger ones.

    Raises:
        InputError: as for `buckets_for`.
    """
    check_count(count)
    histogram = histogram_of(sizes)
    total = sum(histogram.values())
    common = tuple(sorted(sorted(histogram, key=lambda size: -histogram[size])[:count]))
    share = sum(histogram[size] for size in common) / total
    if share >= STATIC_SHARE:
        return Choice("static", common, f"{_sizes(len(common))} of {len(histogram)} seen are {share:.1%} of the calls")
    within = {size: weight for size, weight in histogram.items() if least <= size <= (size if most is None else most)}
    reached = sum(within.values()) / total
    if verified and reached >= MIN_WITHIN:
        buckets = buckets_for(within, count)
        padding = padded_share(within, buckets)
        said = f"with {_sizes(len(buckets))} to pad to, {padding:.0%} of the work is padding"
        if padding <= MAX_PADDED:
            return Choice("buckets", buckets, f"{said}, and {len(histogram)} sizes were seen")
        reason = f"{said}, which is more than {MAX_PADDED:.0%}"
    else:
        reason = f"{len(histogram)} sizes were seen, {_sizes(len(common))} are only {share:.1%} of the calls, " + (
            f"and padding reaches {reached:.0%}" if verified else "and no rule for padding is verified"
        )
    return Choice("dynamic", _representative(histogram), reason)


def _representative(histogram: dict[int, float]) -> tuple[int, ...]:
    """Return the sizes at the 10th, 50th and 90th percentile of calls."""
    total, found, passed = sum(histogram.values()), set(), 0.0
    for size, weight in histogram.items():
        if any(passed < share * total <= passed + weight for share in (0.1, 0.5, 0.9)):
            found.add(size)
        passed += weight
    return tuple(sorted(found))


def _sizes(count: int) -> str:
    return "1 size" if count == 1 else f"{count} sizes"
