"""Choose between static plans, a dynamic plan and buckets, by the observed sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from torchwise.bucketing.buckets import MAX_BUCKETS, buckets_for, check_count, histogram_of, padded_share
from torchwise.former_names import renamed_arguments

STATIC_SHARE = 0.99
"""Share of calls that the most frequent sizes need for static plans. The original answers the other sizes."""
MAX_PADDED = 0.25
"""Share of padding above which one dynamic plan is better than buckets."""

MIN_WITHIN = 0.5
"""Minimum share of calls that the rule covers. Below it, one dynamic plan is better."""


@dataclass(frozen=True, slots=True)
class Choice:
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


@renamed_arguments(verified="proven")
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
