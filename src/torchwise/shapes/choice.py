"""Static, dynamic or buckets: what the sizes that were seen speak for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from torchwise.shapes.buckets import MOST_BUCKETS, buckets_for, check_count, histogram_of, padded_share

STATIC_SHARE = 0.99
"""Share of the calls that the commonest sizes must have for the others to be left to the original."""
MOST_PADDED = 0.25
"""Share of padding above which a plan for every size is better than one for few."""

LEAST_WITHIN = 0.5
"""Share of the calls that padding must reach, or else one plan for every size is better."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How sizes are best served, and why.

    Attributes:
        kind: "static" (a plan for each of a few sizes), "buckets" (sizes are padded to a few) or "dynamic" (one plan
            for every size).
        sizes: the sizes to tune on: all of the static ones, the buckets, or three that stand for the others.
        reason: one sentence.
    """

    kind: Literal["static", "buckets", "dynamic"]
    sizes: tuple[int, ...]
    reason: str


def choose(
    sizes: Mapping[int, float] | Iterable[int],
    *,
    proven: bool,
    count: int = MOST_BUCKETS,
    least: int = 1,
    most: int | None = None,
) -> Choice:
    """Choose by the sizes that were seen.

    Few sizes that are nearly all of the calls need neither padding nor plans for every size. Otherwise sizes are padded
    where a rule is proven, reaches most of the calls, and little of the work is padding.

    Args:
        sizes: with how often each came, or every size as it came.
        proven: whether there is a rule for padding that `prove` did not refuse.
        count: sizes that a plan is made for, at most.
        least: the smallest size to pad; smaller ones are left to the original.
        most: the largest size to pad to; larger ones are left to the original.

    Raises:
        InputError: as `buckets_for`.
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
    if proven and reached >= LEAST_WITHIN:
        buckets = buckets_for(within, count)
        padding = padded_share(within, buckets)
        said = f"with {_sizes(len(buckets))} to pad to, {padding:.0%} of the work is padding"
        if padding <= MOST_PADDED:
            return Choice("buckets", buckets, f"{said}, and {len(histogram)} sizes were seen")
        reason = f"{said}, which is more than {MOST_PADDED:.0%}"
    else:
        reason = f"{len(histogram)} sizes were seen, {_sizes(len(common))} are only {share:.1%} of the calls, " + (
            f"and padding reaches {reached:.0%}" if proven else "and no rule for padding is proven"
        )
    return Choice("dynamic", _representative(histogram), reason)


def _representative(histogram: dict[int, float]) -> tuple[int, ...]:
    """Return the sizes at a tenth, half and nine tenths of the calls."""
    total, found, passed = sum(histogram.values()), set(), 0.0
    for size, weight in histogram.items():
        if any(passed < share * total <= passed + weight for share in (0.1, 0.5, 0.9)):
            found.add(size)
        passed += weight
    return tuple(sorted(found))


def _sizes(count: int) -> str:
    return "1 size" if count == 1 else f"{count} sizes"
