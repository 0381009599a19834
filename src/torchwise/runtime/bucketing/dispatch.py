"""Dispatch a call of any size: pad it to a bucket, run the bucket's plan, and cut the outputs back.

Also here: run a bucket's plan, or else the original on the unpadded call.

Also here: counts of calls by size and bucket.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import is_autocast_enabled, is_grad_enabled

from torchwise.compile.guards.module_guard import ModuleGuard, Reads
from torchwise.errors import InputError
from torchwise.records import Decision
from torchwise.runtime import Dispatcher, Statistics, stale_because
from torchwise.runtime.bucketing.padding import Padder
from torchwise.runtime.bucketing.padding_check import VerifiedPadding
from torchwise.runtime.dispatch import CLOSED
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.workload import Example
from torchwise.workload.identity import specify_inputs
from torchwise.workload.module_state import kept_state

BEYOND = Fallback(FallbackReason.ABOVE_BUCKETS)
BELOW = Fallback(FallbackReason.BELOW_BUCKETS)
GRADIENTS = Fallback(FallbackReason.GRADIENTS_ENABLED, "padding is verified for answers alone")
CHANGED = Fallback(FallbackReason.PADDING_OUTDATED)
UNFIT = Fallback(FallbackReason.PADDING_UNFIT)
EAGER_HERE = Fallback(FallbackReason.EAGER_BUCKET)


class Buckets(Dispatcher):
    """Answers a call by the plan of the smallest bucket that fits it, or else by the original.

    If a bucket's plan cannot answer a call, the original does, as in `Dispatcher`, always with the unpadded inputs. So
    a call that padding was not verified for, such as one without its mask, is never padded.

    Args:
        original: the module or function.
        decisions: one for each bucket, or one for all buckets.
        verified: the rule's verification, for this model.
        canary: as for `Dispatcher`.

    Raises:
        InputError: there are more or fewer decisions than buckets, or one is for training.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        decisions: Sequence[Decision],
        verified: VerifiedPadding,
        *,
        canary: int | None = None,
    ) -> None:
        if len(decisions) not in (1, len(verified.buckets)):
            raise InputError(
                f"there are {len(decisions)} decisions for {len(verified.buckets)} buckets, but there must be one for "
                "each, or one for all"
            )
        if any(decision.workload.mode != "inference" for decision in decisions):
            raise InputError("a decision is for training, but padding is verified for answers alone, not for gradients")
        shared = Statistics()
        served = {id(decision): _make_route(original, decision, verified, canary, shared) for decision in decisions}
        leading = next((decision for decision in decisions if served[id(decision)]), decisions[0])
        stale = stale_because(original, leading)
        refusal = Fallback(FallbackReason.STALE_DECISION, stale) if stale else None
        super().__init__(original, leading, refusal, statistics=shared)
        self.canary = canary  # used by the routes
        self.verified, self.decisions, self.counts = verified, tuple(decisions), Counts()
        each = self.decisions if len(decisions) > 1 else self.decisions * len(verified.buckets)
        self._routes = [served[id(decision)] for decision in each]
        self._dispatchers = [dispatcher for dispatcher in served.values() if dispatcher is not None]
        self._buckets, self._padder = verified.buckets, Padder(original, verified.padding)
        self._least = verified.padding.least
        self._watch = ModuleGuard(original if isinstance(original, torch.nn.Module) else None, self._reads)
        self._looked = 0  # first calls until the last check of which attributes plans read
        self._at_freeze: int | None = None  # first calls until the freeze

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original does."""
        refusal = self._refusal or self._find_unverified_state()
        if refusal is not None:
            return self._original(refusal, args, kwargs)
        try:
            size = self._padder.size_of(args, kwargs)
        except Exception:  # an input may be of any kind, and raise on inspection
            return self._original(UNFIT, args, kwargs)
        place = bisect_left(self._buckets, size)
        if place == len(self._buckets) or size < self._least:
            return self._answer_out_of_range(size, args, kwargs)
        bucket, route, counts = self._buckets[place], self._routes[place], self.counts
        counts.sizes[size] += 1
        if route is None:
            return self._original(EAGER_HERE, args, kwargs)
        if route.refusal is not None:
            return self._original(route.refusal, args, kwargs)
        counts.calls[bucket] += 1
        counts.padding += bucket - size
        counts.computed += bucket
        if size == bucket:
            return route(*args, **kwargs)
        try:
            more, named = self._padder.pad(args, kwargs, bucket - size)
            answer = route.instead_of(args, kwargs, more, named)
            if isinstance(answer, UnpaddedAnswer):
                return answer.answer
            return self._padder.cut(answer, size, bucket)
        except Exception as error:  # if padding led to an error, answer the unpadded call
            return self._original(Fallback(FallbackReason.PADDING_FAILED, type(error).__name__), args, kwargs)

    def warm(self, bucket: int, calls: int) -> None:
        """Call a bucket's plan on the example, resized to the bucket. Do nothing if the original serves the bucket.

        The example and the model's buffers are left as they were.
        """
        route = self._routes[self._buckets.index(bucket)]
        for _ in range(calls if route is not None and self._changed() is None else 0):
            example = self._padder.resize(self.verified.example, bucket).clone()  # which the model may write to
            with torch.no_grad(), kept_state(self.original, example.args, example.kwargs):
                route(*example.args, **example.kwargs)  # type: ignore[misc]

    def freeze(self) -> None:
        """Stop compiling and capturing, in the plans of all buckets, and count any later compilation."""
        super().freeze()
        for dispatcher in self._dispatchers:
            dispatcher.freeze()
        self._at_freeze = self.statistics.first_calls

    def unfreeze(self) -> None:
        """Allow compiling and capturing again, in the plans of all buckets."""
        super().unfreeze()
        for dispatcher in self._dispatchers:
            dispatcher.unfreeze()
        self._at_freeze = None

    def close(self, fallback: Fallback = CLOSED) -> None:
        """Disable the plans of all buckets and free their memory. The original answers from now on."""
        super().close(fallback)
        for dispatcher in self._dispatchers:
            dispatcher.close(fallback)

    @property
    def refusals(self) -> tuple[Fallback | None, ...]:
        """The reason why no plan may answer, or None, then the same for each bucket's plan."""
        # The model changed since the verification, which a copy's own check would not notice.
        return (
            self._refusal or self._other_model(),
            *(route.refusal if route is not None else None for route in self._routes),
        )

    def refuse(self, refusals: Sequence[Fallback | None]) -> None:
        """Disable the plans that are refused or disabled in the original of this copy."""
        if refusals[0] is not None:
            self.close(refusals[0])
        for route, refusal in zip(self._routes, refusals[1:], strict=True):
            if route is not None and refusal is not None:
                route.close(refusal)

    def read_counts(self) -> Counts:
        """Return the counts, with compilations and captures since the freeze."""
        since = self._at_freeze
        self.counts.first_calls = None if since is None else self.statistics.first_calls - since
        self.counts.compiles, self.counts.captures = self.statistics.compiles, self.statistics.captures
        return self.counts

    def _find_unverified_state(self) -> Fallback | None:
        """Return why padding is not verified for the current state of the process and the model, or None."""
        if is_grad_enabled():
            return GRADIENTS
        if is_autocast_enabled(self._device):
            return Fallback(FallbackReason.AUTOCAST_ENABLED)
        return self._changed() or self._other_model()

    def _other_model(self) -> Fallback | None:
        """Return that the model differs from the verified one, or None.

        The location of its weights does not count, nor do attributes that no plan reads.
        """
        if not self._watch.has_changed():
            if self._looked != self.statistics.first_calls:
                self._looked = self.statistics.first_calls
                self._watch.take_snapshot()
            return None
        if not self._watch.has_moved():
            return CHANGED
        self._watch.take_snapshot()
        return None

    def _reads(self) -> Reads | None:
        """Return the attributes of the model that the plans depend on, or None if these may be any."""
        found: dict[tuple[str, ...], set[str]] = {}
        for dispatcher in self._dispatchers:
            reads = dispatcher.active_plan.reads() if dispatcher.active_plan is not None else None
            for path, names in (reads or {(): None}).items():
                if names is None:
                    return None
                found.setdefault(path, set()).update(names)
        return found or None

    def _answer_out_of_range(self, size: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if size < self._least:
            return self._original(BELOW, args, kwargs)
        self.counts.beyond += 1
        self.counts.sizes[1 << (size - 1).bit_length()] += 1
        return self._original(BEYOND, args, kwargs)


def _make_route(
    original: Callable[..., Any],
    decision: Decision,
    verified: VerifiedPadding,
    canary: int | None,
    statistics: Statistics,
) -> BucketDispatch | None:
    """Return the route of a decision, or None if it has no plan or is stale."""
    if decision.plan.is_eager or stale_because(original, decision):
        return None
    return BucketDispatch(original, decision, verified, canary=canary, statistics=statistics)


UNLIKE = Fallback(FallbackReason.PADDING_NOT_VERIFIED)

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class UnpaddedAnswer:
    """An answer of the original to the unpadded call, which must not be cut."""

    answer: Any


class BucketDispatch(Dispatcher):
    """Answers padded calls by a plan, if their arguments, dtypes, ranks and values are of the verified kind.

    Args:
        original: as for `Dispatcher`.
        decision: as for `Dispatcher`.
        verified: the verification of padding.
        canary: as for `Dispatcher`.
        statistics: as for `Dispatcher`.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        decision: Decision,
        verified: VerifiedPadding,
        *,
        canary: int | None,
        statistics: Statistics,
    ) -> None:
        super().__init__(original, decision, canary=canary, statistics=statistics)
        self._form = specify_inputs(verified.example).strip_sizes()
        self._here = threading.local()
        self._changed = _skip_change_check

    def instead_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], more: tuple[Any, ...], named: Any) -> Any:
        """Answer a padded call by the plan, or return the original's answer to the unpadded call (`UnpaddedAnswer`)."""
        self._here.came = (args, kwargs)
        try:
            return self(*more, **named)
        finally:
            self._here.came = None

    def _original(self, fallback: Fallback, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        came: Call | None = getattr(self._here, "came", None)
        if came is None:
            return super()._original(fallback, args, kwargs)
        return UnpaddedAnswer(super()._original(fallback, *came))

    def _find_unverified(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        if specify_inputs(Example(args, kwargs)).strip_sizes() != self._form:
            return UNLIKE
        return super()._find_unverified(args, kwargs)


def _skip_change_check() -> Fallback | None:
    """Replace the check for changes: `Buckets` makes the same check before each call comes here."""
    return None


@dataclass(slots=True)
class Counts:
    """Calls by size and bucket so far. Counts are exact for sequential calls, as in `Statistics`.

    Attributes:
        calls: calls by bucket.
        sizes: calls by size. Sizes beyond the largest bucket are rounded up to a power of two, so that the counts stay
            small.
        beyond: calls beyond the largest bucket, which the original answers.
        padding: total padding, in units of the size.
        computed: total computed size of the calls, with padding, in the same units.
        compiles: graphs that PyTorch compiled in this process since the freeze, or None before it.
        captures: CUDA graphs that were recorded in this process since the freeze, or None before it.
        first_calls: calls that compiled or captured something since the freeze, or None before it.
    """

    calls: Counter[int] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    beyond: int = 0
    padding: int = 0
    computed: int = 0
    compiles: int | None = None
    captures: int | None = None
    first_calls: int | None = None

    @property
    def padded_share(self) -> float:
        """The padded share of the computed sizes, 0 to 1, or 0 before the first call."""
        return self.padding / self.computed if self.computed else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as plain data, for logging or sending."""
        return {
            "calls_by_bucket": dict(self.calls),
            "beyond": self.beyond,
            "padded_share": self.padded_share,
            "compiles_since_freeze": self.compiles,
            "captures_since_freeze": self.captures,
            "first_calls_since_freeze": self.first_calls,
        }
