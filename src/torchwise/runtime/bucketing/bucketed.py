"""Make a model run at all observed sizes: verify the rule for padding, tune plans, apply them, and warm them up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Unpack

from torchwise.compile.cuda_graphs.in_place_replay import SETTLING_CALLS
from torchwise.errors import InputError
from torchwise.former_names import renamed_arguments
from torchwise.keywords import checked_keywords
from torchwise.plan import Plan
from torchwise.plan.workload_spec import TuneKeywords
from torchwise.records import Decision
from torchwise.runtime import OptimizedFunction, OptimizedModule, api, unwrap
from torchwise.runtime.bucketing.buckets import MAX_BUCKETS, Choice, buckets_for, choose, histogram_of
from torchwise.runtime.bucketing.module import Bucketed, apply_buckets, buckets_of
from torchwise.runtime.bucketing.padding import Padder, Padding
from torchwise.runtime.bucketing.padding_check import VerifiedPadding, verify_padding
from torchwise.workload import Example
from torchwise.workload.workload import as_args, as_kwargs

logger = logging.getLogger("torchwise")

CALLS = 2
"""Calls per bucket: one that compiles, and one that shows that the plan then answers."""
DYNAMIC = (Plan(backend="inductor", shapes="dynamic"),)
"""The one plan besides eager for every size: any other plan would answer only the sizes that it was tuned on."""


class Tuned(Protocol):
    """The result of tuning, such as `torchwise.runtime.api.Study`."""

    @property
    def decision(self) -> Decision:
        """The plan to apply, or none, and why."""


@checked_keywords(TuneKeywords)
def bucketed(
    model: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any] | None = None,
    *,
    padding: Padding,
    sizes: Mapping[int, float] | Iterable[int],
    buckets: Sequence[int] | None = None,
    count: int = MAX_BUCKETS,
    plan_per_bucket: bool = False,
    canary: int | None = None,
    tune: Callable[..., Tuned] | None = None,
    **options: Unpack[TuneKeywords],
) -> Bucketed:
    """Return `model` with plans for a few sizes. Inputs of every size are padded to them.

    The rule is verified first, on the model itself. Then plans are tuned on padded inputs of the most frequent sizes of
    each bucket. The original answers inputs beyond the largest bucket. Call `warm_up` before the first request.

    Args:
        model: an `nn.Module` or a function.
        args: example arguments, as long as the longest that will come.
        kwargs: example keyword arguments.
        padding: the rule.
        sizes: observed sizes, as counts by size or one entry per call.
        buckets: sizes to pad to, by default the `count` cheapest ones for `sizes`.
        count: maximum number of buckets.
        plan_per_bucket: tune one plan per bucket instead of one for all, which takes one search per bucket.
        canary: as for `torchwise.apply`.
        tune: replacement for `torchwise.tune`.
        **options: as for `torchwise.tune`.

    Raises:
        InputError: the rule changes an answer, or an argument cannot be used.
        BaselineError: the model raises at one of the sizes.
    """
    model, seen = unwrap(model), histogram_of(sizes)
    buckets = buckets or buckets_for(select_covered_sizes(seen, padding), count)
    verified = verify_padding(model, args, kwargs, padding=padding, buckets=buckets)
    decisions = tune_buckets(model, verified, seen, tune or api.tune, plan_per_bucket=plan_per_bucket, **options)
    return apply_buckets(model, decisions, verified, canary=canary, store=options.get("store"))


@renamed_arguments(verified="proof")
def tune_buckets(
    model: Callable[..., Any],
    verified: VerifiedPadding,
    seen: Mapping[int, float],
    tune: Callable[..., Tuned],
    *,
    plan_per_bucket: bool,
    **options: Unpack[TuneKeywords],
) -> list[Decision]:
    """Tune on padded inputs, for each bucket or once for all buckets."""
    examples = list_padded_examples(model, verified, seen)
    mixes = [[replace(example, weight=1.0)] for example in examples] if plan_per_bucket else [examples]
    return [tune(model, examples=mix, **options).decision for mix in mixes]


def list_padded_examples(
    model: Callable[..., Any], verified: VerifiedPadding, seen: Mapping[int, float]
) -> list[Example]:
    """Return padded inputs for each bucket, with the weight of all its sizes."""
    padder = Padder(model, verified.padding)
    return [_typical(padder, verified, seen, bucket) for bucket in verified.buckets]


def select_covered_sizes(seen: Mapping[int, float], padding: Padding) -> dict[int, float]:
    """Return the sizes that the rule covers.

    Raises:
        InputError: there is none.
    """
    most = padding.most or max(seen)
    found = {size: weight for size, weight in seen.items() if padding.least <= size <= most}
    if not found:
        raise InputError(
            f"sizes from {min(seen)} to {max(seen)} came, but the rule pads from {padding.least} to {most}"
        )
    return found


def _typical(padder: Padder, verified: VerifiedPadding, seen: Mapping[int, float], bucket: int) -> Example:
    """Return an example of a bucket's most frequent size, padded, with the weight of the whole bucket."""
    smaller = max((b for b in verified.buckets if b < bucket), default=0)
    within = {size: weight for size, weight in seen.items() if smaller < size <= bucket}
    size = max(within, key=lambda size: within[size], default=bucket)
    given = padder.resize(verified.example, size)
    args, kwargs = padder.pad(given.args, dict(given.kwargs), bucket - size)
    return Example(args, kwargs, sum(within.values()) or 1.0)


@dataclass(frozen=True, slots=True)
class WarmedBucket:
    """A bucket after its warmup.

    Attributes:
        bucket: its size.
        number: its number, counted from 1.
        total: number of buckets.
        seconds: duration of the warmup.
    """

    bucket: int
    number: int
    total: int
    seconds: float

    def __str__(self) -> str:
        return f"bucket {self.bucket} is ready after {self.seconds:.1f} s ({self.number} of {self.total})"


@checked_keywords()
def warm_up(fast: Any, progress: Callable[[WarmedBucket], object] | None = None, *, freeze: bool = True) -> None:
    """Call the plan of every bucket until it is compiled and captured, then freeze.

    The largest bucket goes first, as smaller ones use its memory. After the freeze no call compiles or captures: the
    original answers calls that would need it, and they are counted. PyTorch compiles separately for
    `torch.inference_mode()`. If requests run under it, call this under it, too.

    Args:
        fast: the wrapper from `bucketed` or `apply_buckets`.
        progress: callback for each bucket, such as `print`. None logs it.
        freeze: whether to freeze.

    Raises:
        InputError: `fast` does not pad.
    """
    buckets = buckets_of(fast)
    sizes = sorted(buckets.verified.buckets, reverse=True)
    captures = any(decision.plan.capture != "none" for decision in buckets.decisions)
    for number, bucket in enumerate(sizes, 1):
        start = time.perf_counter()
        buckets.warm(bucket, CALLS + SETTLING_CALLS if captures else CALLS)
        warmed = WarmedBucket(bucket, number, len(sizes), time.perf_counter() - start)
        if progress is None:
            logger.info("torchwise: %s", warmed)
        else:
            progress(warmed)
    if freeze:
        buckets.freeze()


@checked_keywords(TuneKeywords)
def fit(
    model: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any] | None = None,
    *,
    padding: Padding,
    sizes: Mapping[int, float] | Iterable[int],
    count: int = MAX_BUCKETS,
    plan_per_bucket: bool = False,
    tune: Callable[..., Tuned] | None = None,
    **options: Unpack[TuneKeywords],
) -> tuple[OptimizedModule | OptimizedFunction, Choice]:
    """Return `model` with plans for the observed sizes, and the choice with its reason.

    A few sizes get a plan each. Otherwise inputs are padded to buckets, if this adds little work and the rule changes
    no output. Otherwise one plan is tuned on sizes that represent the others.

    Args:
        model: an `nn.Module` or a function.
        args: example arguments, as long as the longest that will come.
        kwargs: example keyword arguments.
        padding: the rule: which inputs carry the size, and how to pad them. It may be refused.
        sizes: observed sizes, as counts by size or one entry per call.
        count: maximum number of sizes with a plan.
        plan_per_bucket: tune one plan per bucket instead of one for all.
        tune: replacement for `torchwise.tune`.
        **options: as for `torchwise.tune`.

    Raises:
        InputError: an argument cannot be used.
        BaselineError: the model raises at one of the sizes.
    """
    model, seen = unwrap(model), histogram_of(sizes)
    search: Callable[..., Tuned] = tune or api.tune
    example = Example(as_args(args), as_kwargs(kwargs or {}))
    padder = Padder(model, padding)
    padder.size_of(example.args, example.kwargs)
    choice, verified = _choose_and_verify(model, example, padding, seen, count)
    logger.info("torchwise: %s, because %s", choice.kind, choice.reason)
    if verified is not None:
        decisions = tune_buckets(model, verified, seen, search, plan_per_bucket=plan_per_bucket, **options)
        return apply_buckets(model, decisions, verified, store=options.get("store")), choice
    examples = [replace(padder.resize(example, size), weight=seen[size]) for size in choice.sizes]
    if choice.kind == "dynamic" and options.get("allow") != "exact":
        options = {"plans": DYNAMIC, **options}
    decision = search(model, examples=examples, **options).decision
    return api.apply(model, decision, store=options.get("store")), choice


def _choose_and_verify(
    model: Callable[..., Any], example: Example, padding: Padding, seen: Mapping[int, float], count: int
) -> tuple[Choice, VerifiedPadding | None]:
    choice = choose(seen, verified=True, count=count, least=padding.least, most=padding.most)
    if choice.kind != "buckets":
        return choice, None
    try:
        return choice, verify_padding(model, example.args, dict(example.kwargs), padding=padding, buckets=choice.sizes)
    except InputError as error:  # the rule is refused: go on without padding
        other = choose(seen, verified=False, count=count)
        return replace(other, reason=f"{other.reason} ({error})"), None
