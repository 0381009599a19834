"""Run a bucket's plan, or else the original on the unpadded call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchwise.bucketing.padding_check import VerifiedPadding
from torchwise.records import Decision
from torchwise.runtime import Dispatcher, Statistics
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.workload import Example
from torchwise.workload.identity import specify_inputs

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
