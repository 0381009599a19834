"""Choose plans for the observed sizes, verify the rule if necessary, tune and apply, in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import TuneKeywords
from torchwise.runtime import OptimizedFunction, OptimizedModule, unwrap
from torchwise.runtime.bucketing.bucketed import Tuned, import_tune, tune_buckets
from torchwise.runtime.bucketing.buckets import MAX_BUCKETS, Choice, choose, histogram_of
from torchwise.runtime.bucketing.module import apply_buckets
from torchwise.runtime.bucketing.padding import Padder, Padding
from torchwise.runtime.bucketing.padding_check import VerifiedPadding, verify_padding
from torchwise.workload import Example
from torchwise.workload.workload import as_args, as_kwargs

logger = logging.getLogger("torchwise")

DYNAMIC = (Plan(backend="inductor", shapes="dynamic"),)
"""The one plan besides eager for every size: any other plan would answer only the sizes that it was tuned on."""


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
    from torchwise.runtime.api import apply

    model, seen, tune = unwrap(model), histogram_of(sizes), tune or import_tune()
    example = Example(as_args(args), as_kwargs(kwargs or {}))
    padder = Padder(model, padding)
    padder.size_of(example.args, example.kwargs)
    choice, verified = _choose_and_verify(model, example, padding, seen, count)
    logger.info("torchwise: %s, because %s", choice.kind, choice.reason)
    if verified is not None:
        decisions = tune_buckets(model, verified, seen, tune, plan_per_bucket=plan_per_bucket, **options)
        return apply_buckets(model, decisions, verified, store=options.get("store")), choice
    examples = [replace(padder.resize(example, size), weight=seen[size]) for size in choice.sizes]
    if choice.kind == "dynamic" and options.get("allow") != "exact":
        options = {"plans": DYNAMIC, **options}
    decision = tune(model, examples=examples, **options).decision
    return apply(model, decision, store=options.get("store")), choice


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
