"""What every sampler promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torchwise.decide.history import History
from torchwise.plan import Plan


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan worth trying, and why."""

    plan: Plan
    reason: str


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
