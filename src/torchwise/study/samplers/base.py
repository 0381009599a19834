"""The interface of every sampler.

Also here: exactly the plans that the user names, in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torchwise.plan import Plan
from torchwise.study.history import History


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan worth trying, and why.

    Attributes:
        plan: the plan.
        reason: why, in words.
        limit_s: seconds after which its trial is ended, so that others can be tried as well, or infinite if nothing
            else waits.
    """

    plan: Plan
    reason: str
    limit_s: float = math.inf


class Sampler(Protocol):
    """Chooses the next plan from the history.

    A sampler keeps no state: the same history gives the same answer. So an interrupted study continues from the same
    point, and several processes may share one. It proposes only legal plans that are open or that the user named, never
    eager, and never a plan that the history holds. It ends by returning None, and stays with that.
    `torchwise.testing.sampler` has this contract as tests.
    """

    def ask(self, history: History) -> Proposal | None:
        """Return the plan to try next, or None when nothing more is worth its cost."""
        ...

    def list_excluded(self, history: History) -> list[str]:
        """List the plans not worth trying given the history, each as "name: reason"."""
        ...


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
