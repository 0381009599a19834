"""Two plans for one model: one for the sizes that it was verified on, and one that answers every other size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.compile import Backend, Signature
from torchwise.records import Decision
from torchwise.runtime.dispatch import Dispatcher
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.served import CLOSED, Recipe, refusal_of_copy
from torchwise.runtime.statistics import Statistics


class SizesDispatcher(Dispatcher):
    """Answers calls by a plan for the sizes that were seen, and calls of other sizes by a plan with dynamic shapes.

    Both count in the same statistics. The original answers if neither plan may.

    Args:
        original: the module or function.
        decision: the decision for the sizes that were seen.
        others: the decision for all other sizes, whose plan has dynamic shapes.
        refusal: why the first plan may not answer at all, or None.
        refusal_of_others: the same for the second plan.
        backend: makes the compiled part of the first plan, as for `Dispatcher`.
        backend_of_others: the same for the second plan.
        **options: as for `Dispatcher`, for both.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        decision: Decision,
        others: Decision,
        refusal: Fallback | None = None,
        refusal_of_others: Fallback | None = None,
        *,
        backend: Backend | None = None,
        backend_of_others: Backend | None = None,
        **options: Any,
    ) -> None:
        super().__init__(original, decision, refusal, backend=backend, **options)
        options["statistics"] = self.statistics
        self.others = Dispatcher(original, others, refusal_of_others, backend=backend_of_others, **options)

    def can_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        """Return why the original would answer such a call now, or None if one of the plans may."""
        found = super().can_run(args, kwargs)
        if found is not None and found.reason is FallbackReason.INPUTS_NOT_VERIFIED:
            return self.others.can_run(args, kwargs)
        return found

    def answer_unverified(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002
        """Answer a call on inputs that the first plan was not verified on: by the second plan."""
        return self.others(*args, **kwargs)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions of both plans."""
        return self.decision, self.others.decision

    def set_frozen(self, frozen: bool) -> None:
        """Say to both plans whether nothing more may be compiled."""
        super().set_frozen(frozen)
        self.others.set_frozen(frozen)

    def count_in(self, statistics: Statistics) -> None:
        """Count the calls of both plans in these statistics."""
        super().count_in(statistics)
        self.others.count_in(statistics)

    def close(self, fallback: Fallback = CLOSED) -> None:
        """Disable both plans and free their memory."""
        super().close(fallback)
        self.others.close(fallback)

    def forget(self) -> None:
        """Free the memory of both plans."""
        super().forget()
        self.others.forget()

    def describe(self) -> str:
        """Name both plans."""
        return f"{super().describe()}; other sizes: {self.others.decision.plan}"

    def get_recipe(self) -> Recipe:
        """Return how a copy makes both again."""
        parts = (self.original, self.decision, self.others.decision, self.borrow, self.canary)
        return self.restore_both, (*parts, self._refusal, self.others.refusal)

    @classmethod
    def restore_both(
        cls,
        original: Callable[..., Any],
        decision: Decision,
        others: Decision,
        borrow: bool = False,
        canary: int | None = None,
        refusal: Fallback | None = None,
        refusal_of_others: Fallback | None = None,
    ) -> SizesDispatcher:
        """Make it again in a copy or from a pickle. What was refused stays refused."""
        refusals = refusal_of_copy(original, decision, refusal), refusal_of_copy(original, others, refusal_of_others)
        return cls(original, decision, others, *refusals, borrow=borrow, canary=canary)
