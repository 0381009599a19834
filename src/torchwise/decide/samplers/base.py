"""What every sampler promises."""

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
        limit_s: seconds after which its trial is ended, so that others can be tried as well; infinite where nothing
            else waits.
    """

    plan: Plan
    reason: str
    limit_s: float = math.inf


class Sampler(Protocol):
    """Chooses the next plan from what is known.

    A sampler keeps no state: the same history gives the same answer, so that a broken study goes on where it stood, and
    several processes may share one. It never proposes a plan that the history holds, and ends by returning None.
    """

    def ask(self, history: History) -> Proposal | None:
        """Return the plan to try next, or None when nothing more is worth its cost."""
        ...

    def excluded(self, history: History) -> list[str]:
        """List what is not worth trying given the history, each as "name: reason"."""
        ...
