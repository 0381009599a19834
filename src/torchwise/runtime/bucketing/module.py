"""Drop-in wrappers that pad to buckets: one for modules, which looks like the original, and one for functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise.errors import InputError
from torchwise.former_names import renamed_arguments
from torchwise.keywords import checked_keywords
from torchwise.records import Decision
from torchwise.runtime import OptimizedFunction, OptimizedModule, unwrap
from torchwise.runtime.bucketing.dispatch import Buckets
from torchwise.runtime.bucketing.padding_check import VerifiedPadding
from torchwise.runtime.served import Wrapper, rebuild, served_of
from torchwise.runtime.statistics import Counts
from torchwise.study.apply_approvals import apply_stored_approvals


class BucketsWrapper(Wrapper):
    """A wrapper around the plans of buckets."""

    def __init__(
        self, original: Any, decisions: Sequence[Decision], verified: VerifiedPadding, *, canary: int | None = None
    ) -> None:
        self._hold(Buckets(original, decisions, verified, canary=canary))


class BucketedModule(BucketsWrapper, OptimizedModule):
    """Runs a module by the plans of its buckets (`Buckets`). Otherwise it is like `OptimizedModule`."""


class BucketedFunction(BucketsWrapper, OptimizedFunction):
    """Runs a function by the plans of its buckets (see `Buckets`)."""

    def __repr__(self) -> str:
        return f"<BucketedFunction {self._dispatcher.original!r}: {self._dispatcher.describe()}>"


Bucketed = BucketedModule | BucketedFunction


@renamed_arguments(verified="proof")
@checked_keywords()
def apply_buckets(
    model: Callable[..., Any],
    decisions: Decision | Sequence[Decision],
    verified: VerifiedPadding,
    *,
    canary: int | None = None,
    store: str | None = None,
) -> Bucketed:
    """Return `model` with padding to buckets and their plans. The model itself stays unchanged.

    Args:
        model: the model of the decisions and the verification.
        decisions: one for each bucket of the verification, in its order, or one for all. The original answers a bucket,
            without padding, if its decision is stale or has no plan.
        verified: the verification, from `verify_padding`.
        canary: as for `torchwise.apply`.
        store: as for `torchwise.apply`. Its approvals count.

    Raises:
        InputError: there are more or fewer decisions than buckets, or one is for training.
    """
    given = (decisions,) if isinstance(decisions, Decision) else tuple(decisions)
    several = tuple(apply_stored_approvals(decision, store).decision for decision in given)
    model = unwrap(model)
    made: Bucketed = _class_for(model)._wrap(Buckets(model, several, verified, canary=canary))
    return made


def counts_of(fast: Any) -> Counts:
    """Return the counts of sizes and buckets.

    This is no method, as a model may have a method of any name.

    Raises:
        InputError: `fast` does not pad.
    """
    return buckets_of(fast).read_counts()


def buckets_of(fast: Any) -> Buckets:
    """Return the `Buckets` behind a wrapper.

    Raises:
        InputError: `fast` is no wrapper that pads.
    """
    found = served_of(fast)
    if not isinstance(found, Buckets):
        raise InputError(
            f"it is of type {type(fast).__name__}, but only the result of `bucketed` or `apply_buckets` pads"
        )
    return found


def _rebuilt(original: Any, *parts: Any) -> Any:
    """Make a wrapper again from a pickle of an earlier version."""
    return rebuild(_class_for(original), Buckets.restore, (original, *parts))


def _class_for(model: Callable[..., Any]) -> type[BucketedModule | BucketedFunction]:
    return BucketedModule if isinstance(model, torch.nn.Module) else BucketedFunction
