"""Exactly the plans that the user names, in order."""

from __future__ import annotations

from collections.abc import Sequence

from torchwise.decide.history import History
from torchwise.decide.samplers.base import Proposal
from torchwise.plan import Plan


class ListedSampler:
    """Proposes each plan of a list once. See `Sampler`."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = tuple(plans)

    def ask(self, history: History) -> Proposal | None:
        """Return the first plan of the list that was not tried."""
        for plan in self._plans:
            if not plan.is_eager and history.find_trial(plan) is None:
                return Proposal(plan, "asked for")
        return None

    def list_excluded(self, history: History) -> list[str]:  # noqa: ARG002 - the shape of a sampler
        """Return nothing: the user chose."""
        return []
