"""The interface of every sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from torchwise.decide.history import History
from torchwise.plan import Plan


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
    point, and several processes may share one. It never proposes a plan that the history holds, and ends by returning
    None.
    """

    def ask(self, history: History) -> Proposal | None:
        """Return the plan to try next, or None when nothing more is worth its cost."""
        ...

    def list_excluded(self, history: History) -> list[str]:
        """List the plans not worth trying given the history, each as "name: reason"."""
        ...
