"""Dispatch a call of any size: pad it to a bucket, run the bucket's plan, and cut the outputs back."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import is_autocast_enabled, is_grad_enabled

from torchwise.compile.guards.module_guard import ModuleGuard, Reads
from torchwise.errors import InputError
from torchwise.records import Decision
from torchwise.runtime import Dispatcher, Statistics, stale_because
from torchwise.runtime.bucketing.padding import Padder
from torchwise.runtime.bucketing.padding_check import VerifiedPadding
from torchwise.runtime.call_guard import CallGuard
from torchwise.runtime.fallback_reason import Fallback, FallbackReason, read_fallback
from torchwise.runtime.served import CLOSED, Recipe, Served
from torchwise.runtime.statistics import EAGER_DECISION, Counts
from torchwise.workload import Example
from torchwise.workload.identity import specify_inputs
from torchwise.workload.module_state import kept_state

BEYOND = Fallback(FallbackReason.ABOVE_BUCKETS)
BELOW = Fallback(FallbackReason.BELOW_BUCKETS)
GRADIENTS = Fallback(FallbackReason.GRADIENTS_ENABLED, "padding is verified for answers alone")
CHANGED = Fallback(FallbackReason.PADDING_OUTDATED)
UNFIT = Fallback(FallbackReason.PADDING_UNFIT)
UNLIKE = Fallback(FallbackReason.PADDING_NOT_VERIFIED)
EAGER_HERE = Fallback(FallbackReason.EAGER_BUCKET)

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keyword arguments."""


@dataclass(frozen=True, slots=True)
class UnpaddedAnswer:
    """An answer of the original to the unpadded call, which must not be cut."""

    answer: Any


class _Unpadded(threading.local):
    """The call as it came, while a padded one is under way in this thread."""

    call: Call | None = None


class Buckets(Served):
    """Answers a call by the plan of the smallest bucket that fits it, or else by the original.

    Each plan has a `Dispatcher`, its route. If a route's plan cannot answer a call, the original does, always with the
    unpadded inputs. So a call that padding was not verified for, such as one without its mask, is never padded.

    There is one decision for each bucket, or one for all.

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
        _check_decisions(decisions, verified)
        statistics, self._counts = Statistics(), Counts()
        self._at_freeze: int | None = None  # first calls until the freeze
        self._unpadded = _Unpadded()
        self._out_of_range: dict[Fallback, Fallback] = {}  # with the first size outside
        self._form = specify_inputs(verified.example).strip_sizes()
        self.verified, self._decisions, self.canary = verified, tuple(decisions), canary
        found = {id(decision): self._make_route(original, decision, statistics) for decision in decisions}
        leading = next((decision for decision in decisions if found[id(decision)]), decisions[0])
        stale = stale_because(original, leading)
        refusal = Fallback(FallbackReason.STALE_DECISION, stale) if stale else None
        super().__init__(original, leading, refusal, statistics)
        each = self._decisions if len(decisions) > 1 else self._decisions * len(verified.buckets)
        self.routes = [found[id(decision)] for decision in each]
        self.dispatchers = [route for route in found.values() if route is not None]
        self._buckets, self._padder = verified.buckets, Padder(original, verified.padding)
        self._least, self._device = verified.padding.least, leading.workload.device
        self._changed = CallGuard(original, inference=True).make_check()
        self._watch = ModuleGuard(original if isinstance(original, torch.nn.Module) else None, self._reads)
        self._looked = 0  # first calls until the last check of which attributes plans read

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original does."""
        refusal = self._refusal or self._find_unverified_state()
        if refusal is not None:
            return self.answer_by_original(refusal, args, kwargs)
        try:
            size = self._padder.size_of(args, kwargs)
        except Exception:  # an input may be of any kind, and raise on inspection
            return self.answer_by_original(UNFIT, args, kwargs)
        place = bisect_left(self._buckets, size)
        if place == len(self._buckets) or size < self._least:
            return self._answer_out_of_range(size, args, kwargs)
        bucket, route, counts = self._buckets[place], self.routes[place], self._counts
        counts.sizes[size] += 1
        if route is None:
            return self.answer_by_original(EAGER_HERE, args, kwargs)
        if route.refusal is not None:
            return self.answer_by_original(route.refusal, args, kwargs)
        counts.calls[bucket] += 1
        counts.computed += bucket
        if size == bucket:
            if self._unpadded.call is None:
                return route(*args, **kwargs)
            return self._call_route(route, None, args, kwargs)  # amid a padded call, which is none of this one's
        counts.padding += bucket - size
        try:
            more, named = self._padder.pad(args, kwargs, bucket - size)
            answer = self._call_route(route, (args, kwargs), more, named)
            if isinstance(answer, UnpaddedAnswer):
                return answer.answer
            return self._padder.cut(answer, size, bucket)
        except Exception as error:  # if padding led to an error, answer the unpadded call
            failed = Fallback(FallbackReason.PADDING_FAILED, type(error).__name__)
            return self.answer_by_original(failed, args, kwargs)

    def can_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        """Return why the original would answer such a call now, or None if a bucket's plan may."""
        refusal = self._refusal or self._find_unverified_state()
        if refusal is not None:
            return refusal
        try:
            size = self._padder.size_of(args, kwargs)
        except Exception:  # as in a call
            return UNFIT
        place = bisect_left(self._buckets, size)
        if place == len(self._buckets) or size < self._least:
            return BELOW if size < self._least else BEYOND
        if (route := self.routes[place]) is None:
            return EAGER_HERE
        try:
            return route.can_run(*self._padder.pad(args, kwargs, self._buckets[place] - size))
        except Exception as error:  # as in a call
            return Fallback(FallbackReason.PADDING_FAILED, type(error).__name__)

    def find_unlike(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        """Return that arguments, dtypes, ranks or values are of another kind than padding was verified for, or None."""
        return None if specify_inputs(Example(args, kwargs)).strip_sizes() == self._form else UNLIKE

    def find_unpaddable(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        """Return why such a call must not be padded now, whoever answers it, or None if padding is verified for it."""
        refusal = None if self._refusal is EAGER_DECISION else self._refusal
        return refusal or self._find_unverified_state() or self.find_unlike(args, kwargs)

    def warm(self, bucket: int, calls: int) -> None:
        """Call a bucket's plan on the example, resized to the bucket. Do nothing if the original serves the bucket.

        The example and the model's buffers are left as they were.
        """
        route = self.routes[self._buckets.index(bucket)]
        for _ in range(calls if route is not None and self._changed() is None else 0):
            example = self._padder.resize(self.verified.example, bucket).clone()  # which the model may write to
            with torch.no_grad(), kept_state(self.original, example.args, example.kwargs):
                route(*example.args, **example.kwargs)  # type: ignore[misc]

    def freeze(self) -> None:
        """Stop compiling and capturing, in the plans of all buckets, and count any later compilation."""
        super().freeze()
        self._at_freeze = self.statistics.first_calls

    def unfreeze(self) -> None:
        """Allow compiling and capturing again, in the plans of all buckets."""
        super().unfreeze()
        self._at_freeze = None

    def set_frozen(self, frozen: bool) -> None:
        """Say so to the plans of all buckets."""
        super().set_frozen(frozen)
        for route in self.dispatchers:
            route.set_frozen(frozen)

    def count_in(self, statistics: Statistics) -> None:
        """Count the calls of all buckets in these statistics."""
        super().count_in(statistics)
        for route in self.dispatchers:
            route.count_in(statistics)

    def read_counts(self) -> Counts:
        """Return the counts, with compilations and captures since the freeze."""
        since = self._at_freeze
        self._counts.first_calls = None if since is None else self.statistics.first_calls - since
        self._counts.compiles, self._counts.captures = self.statistics.compiles, self.statistics.captures
        return self._counts

    def close(self, fallback: Fallback = CLOSED) -> None:
        """Disable the plans of all buckets and free their memory. The original answers from now on."""
        super().close(fallback)
        for route in self.dispatchers:
            route.close(fallback)

    def forget(self) -> None:
        """Free the memory of the plans of all buckets."""
        for route in self.dispatchers:
            route.forget()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions as they were given: one for each bucket, or one for all."""
        return self._decisions

    def get_recipe(self) -> Recipe:
        """Return how a copy makes it again."""
        # The model changed since the verification, which a copy's own check would not notice.
        own = self._refusal or self._other_model()
        refusals = (own, *(route.refusal if route is not None else None for route in self.routes))
        return self.restore, (self.original, self._decisions, self.verified, self.canary, refusals)

    @classmethod
    def restore(
        cls,
        original: Callable[..., Any],
        decisions: Sequence[Decision],
        verified: VerifiedPadding,
        canary: int | None,
        refusals: Sequence[Fallback | str | None] | None = None,
    ) -> Buckets:
        """Make it again from the decisions in force, as copies and pickles read no store.

        A copy also refuses the plans that were refused or disabled.
        """
        made = cls(original, decisions, verified, canary=canary)
        own, *of_routes = map(read_fallback, refusals or (None,))
        if own is not None:
            made.close(own)
        for route, refusal in zip(made.routes, of_routes, strict=False):
            if route is not None and refusal is not None:
                route.close(refusal)
        return made

    def describe(self) -> str:
        """Name the buckets and the plans."""
        plans = ", ".join(dict.fromkeys(str(decision.plan) for decision in self._decisions))
        return f"buckets: {', '.join(map(str, self._buckets))}; plan: {plans}"

    def _make_route(
        self, original: Callable[..., Any], decision: Decision, statistics: Statistics
    ) -> Dispatcher | None:
        """Return what answers by a decision's plan, or None if it has none or is stale."""
        if decision.plan.is_eager or stale_because(original, decision):
            return None

        def answer_unpadded(*args: Any, **kwargs: Any) -> Any:
            call = self._unpadded.call
            if call is None:
                return original(*args, **kwargs)
            return UnpaddedAnswer(original(*call[0], **call[1]))

        return Dispatcher(
            original,
            decision,
            canary=self.canary,
            statistics=statistics,
            answer_instead=answer_unpadded,
            find_change=lambda: None,  # the model was checked before the call came here
            find_unlike=self.find_unlike,
        )

    def _call_route(self, route: Dispatcher, call: Call | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call by a plan. If it is padded, return the original's answer to `call` as an `UnpaddedAnswer`."""
        outer, self._unpadded.call = self._unpadded.call, call  # a model may call its own wrapper
        try:
            return route(*args, **kwargs)
        finally:
            self._unpadded.call = outer

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
        for dispatcher in self.dispatchers:
            reads = dispatcher.active_plan.reads() if dispatcher.active_plan is not None else None
            for path, names in (reads or {(): None}).items():
                if names is None:
                    return None
                found.setdefault(path, set()).update(names)
        return found or None

    def _answer_out_of_range(self, size: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if size < self._least:
            return self.answer_by_original(self._name_first_size(BELOW, size, self._least), args, kwargs)
        self._counts.beyond += 1
        self._counts.sizes[1 << (size - 1).bit_length()] += 1
        return self.answer_by_original(self._name_first_size(BEYOND, size, self._buckets[-1]), args, kwargs)

    def _name_first_size(self, fallback: Fallback, size: int, limit: int) -> Fallback:
        """Return the fallback with the first size that it was for, as one warning is enough."""
        detailed = Fallback(fallback.reason, f"{size}, and not {limit}")
        return self._out_of_range.setdefault(fallback, detailed)


def _check_decisions(decisions: Sequence[Decision], verified: VerifiedPadding) -> None:
    if len(decisions) not in (1, len(verified.buckets)):
        raise InputError(
            f"there are {len(decisions)} decisions for {len(verified.buckets)} buckets, but there must be one for "
            "each, or one for all"
        )
    if any(decision.workload.mode != "inference" for decision in decisions):
        raise InputError("a decision is for training, but padding is verified for answers alone, not for gradients")
