"""Who is told how a study goes, while it goes."""

from __future__ import annotations

from typing import Any, Protocol

from torchwise.plan import Plan
from torchwise.records import Inspection, Interval, Trial


class Listener(Protocol):
    """Told of every step of a study, in order. Must not raise."""

    def inspecting(self) -> None:
        """The plain model is being looked at."""

    def inspected(self, inspection: Inspection) -> None:
        """The plain model was looked at."""

    def trying(self, number: int, plan: Plan, reason: str) -> None:
        """A trial starts."""

    def stage(self, name: str) -> None:
        """The worker entered a stage."""

    def finished(self, trial: Trial) -> None:
        """A trial ended."""

    def leading(self, plan: Plan, speedup: Interval | None) -> None:
        """Another plan leads."""

    def comparing(self, plan: Plan, rival: Plan) -> None:
        """Two plans that their trials may not tell apart are being timed beside each other."""

    def compared(self, trial: Trial) -> None:
        """They were: the trial has the duel."""

    def repeated(self, trial: Trial) -> None:
        """A plan was timed beside eager in one more process: the trial has the measurement, or failed."""

    def note(self, text: str) -> None:
        """Something the user should know, such as a stored decision that was reused or is stale."""


class Silent:
    """A listener that says nothing."""

    def note(self, *_: Any, **__: Any) -> None:
        """Say nothing."""

    inspecting = inspected = trying = stage = finished = leading = comparing = compared = repeated = note
