"""Remember the inputs that a plan was not verified on: how they differ, and how often they came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchwise.compile import Signature
from torchwise.runtime.call_guard import VerifiedInputs
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.statistics import OTHER, Statistics, add_bounded
from torchwise.workload import Example
from torchwise.workload.identity import specify_inputs
from torchwise.workload.input_spec import InputSpec

MAX_KINDS = 20
"""Kinds of inputs that are remembered: those that came first. Simulations may never have one size twice."""


@dataclass(slots=True)
class Missed:
    """One kind of inputs that came.

    Attributes:
        inputs: their description.
        difference: how they differ from the closest verified ones.
        is_other_size: whether nothing but sizes differs.
        times: how often they came.
    """

    inputs: InputSpec
    difference: str
    is_other_size: bool
    times: int = 0


class MissedInputs:
    """Counts the calls on inputs that a plan was not verified on.

    Attributes:
        other_sizes: calls whose inputs differ in nothing but sizes. Kinds that are not remembered count if all others
            do, as describing each anew would slow down every such call.
        record: answers such calls in place of the original, which it gets as a function, or None.
    """

    def __init__(self, verified: VerifiedInputs) -> None:
        self._verified = verified
        self._kinds: dict[Signature, Missed] = {}
        self._first: Fallback | None = None
        self._are_sizes = True
        self.other_sizes = 0
        self.record: Callable[..., Any] | None = None

    def note(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], statistics: Statistics) -> Fallback:
        """Count such a call. The fallback names the first such inputs, as one warning is enough."""
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) < MAX_KINDS:
            kind = self._kinds[key] = self._describe(args, kwargs)
            self._are_sizes &= kind.is_other_size
        if kind is not None:
            kind.times += 1
        self.other_sizes += self._are_sizes if kind is None else kind.is_other_size
        add_bounded(statistics.unverified, (kind and kind.difference) or OTHER)
        if self._first is None:
            self._first = Fallback(FallbackReason.INPUTS_NOT_VERIFIED, kind.difference if kind else "")
        return self._first

    def answer(
        self, by_original: Callable[..., Any], fallback: Fallback, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer such a call by the original, and have it recorded, if that was asked for."""
        if self.record is None:
            return by_original(fallback, args, kwargs)
        return self.record(lambda *args, **kwargs: by_original(fallback, args, kwargs), args, kwargs)

    def list_other_sizes(self) -> tuple[Missed, ...]:
        """List the kinds that differ from verified inputs in nothing but sizes, while other threads may add some."""
        return tuple(kind for kind in list(self._kinds.values()) if kind.is_other_size)

    def _describe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Missed:
        spec = specify_inputs(Example(args, kwargs))
        return Missed(spec, self._verified.describe_difference(spec), self._verified.cover_form(spec))
