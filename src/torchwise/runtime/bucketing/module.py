"""Drop-in wrappers that pad to buckets: one for modules, which looks like the original, and one for functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise.errors import InputError
from torchwise.former_names import renamed_arguments
from torchwise.records import Decision
from torchwise.runtime import OptimizedFunction, OptimizedModule, unwrap
from torchwise.runtime.bucketing.dispatch import Buckets, Counts
from torchwise.runtime.bucketing.padding_check import VerifiedPadding
from torchwise.runtime.fallback_reason import Fallback, read_fallback
from torchwise.runtime.module import dispatcher_of
from torchwise.study.apply_approvals import apply_stored_approvals


class BucketedModule(OptimizedModule):
    """Runs a module by the plans of its buckets (`Buckets`). Otherwise it is like `OptimizedModule`."""

    def __init__(
        self,
        original: torch.nn.Module,
        decisions: Sequence[Decision],
        verified: VerifiedPadding,
        *,
        canary: int | None = None,
    ) -> None:
        buckets = Buckets(original, decisions, verified, canary=canary)
        super().__init__(original, buckets.decision)
        self.__dict__["_torchwise"] = buckets

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the original, the decisions and the verification. Compiled code is built again."""
        return _reduce_buckets(buckets_of(self))

    def extra_repr(self) -> str:
        """Name the plans in use."""
        return _describe_buckets(buckets_of(self))


class BucketedFunction(OptimizedFunction):
    """Runs a function by the plans of its buckets (see `Buckets`)."""

    def __init__(
        self,
        original: Callable[..., Any],
        decisions: Sequence[Decision],
        verified: VerifiedPadding,
        *,
        canary: int | None = None,
    ) -> None:
        buckets = Buckets(original, decisions, verified, canary=canary)
        super().__init__(original, buckets.decision)
        self._dispatcher = buckets

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the original, the decisions and the verification."""
        return _reduce_buckets(buckets_of(self))

    def __repr__(self) -> str:
        return f"<BucketedFunction {self._dispatcher.original!r}: {_describe_buckets(buckets_of(self))}>"


Bucketed = BucketedModule | BucketedFunction


@renamed_arguments(verified="proof")
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
    return _rebuilt(unwrap(model), several, verified, canary)


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
    found = dispatcher_of(fast)
    if not isinstance(found, Buckets):
        raise InputError(
            f"it is of type {type(fast).__name__}, but only the result of `bucketed` or `apply_buckets` pads"
        )
    return found


def _reduce_buckets(buckets: Buckets) -> tuple[Any, ...]:
    return (_rebuilt, (buckets.original, buckets.decisions, buckets.verified, buckets.canary, buckets.refusals))


def _rebuilt(
    original: Any,
    decisions: tuple[Decision, ...],
    verified: VerifiedPadding,
    canary: int | None,
    refusals: tuple[Fallback | str | None, ...] | None = None,
) -> Bucketed:
    """Rebuild a wrapper from the decisions in force, as copies and pickles read no store.

    A copy also refuses the plans that were refused or disabled.
    """
    kind = BucketedModule if isinstance(original, torch.nn.Module) else BucketedFunction
    made = kind(original, decisions, verified, canary=canary)
    if refusals is not None:
        buckets_of(made).refuse([*map(read_fallback, refusals)])
    return made


def _describe_buckets(buckets: Buckets) -> str:
    plans = ", ".join(dict.fromkeys(str(decision.plan) for decision in buckets.decisions))
    return f"buckets: {', '.join(map(str, buckets.verified.buckets))}; plan: {plans}"
