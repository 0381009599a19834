"""The listener that hears about a study's progress."""

from __future__ import annotations

from typing import Any, Protocol

from torchwise.plan import Plan
from torchwise.records import Inspection, Interval, Trial


class Listener(Protocol):
    """Told of every step of a study, in order. Must not raise."""

    def start_inspection(self) -> None:
        """The inspection of the plain model begins."""

    def finish_inspection(self, inspection: Inspection) -> None:
        """The plain model was inspected."""

    def start_trial(self, number: int, plan: Plan, reason: str) -> None:
        """A trial starts."""

    def stage(self, name: str) -> None:
        """The worker entered a stage."""

    def finish_trial(self, trial: Trial) -> None:
        """A trial ended."""

    def change_leader(self, plan: Plan, speedup: Interval | None) -> None:
        """Another plan leads."""

    def start_comparison(self, plan: Plan, rival: Plan) -> None:
        """Two plans that their trials may not tell apart are being timed beside each other."""

    def finish_comparison(self, trial: Trial) -> None:
        """Two plans were timed: the trial has the duel."""

    def finish_repeat(self, trial: Trial) -> None:
        """A plan was timed beside eager in one more process: the trial has the measurement, or failed."""

    def note(self, text: str) -> None:
        """A note for the user, such as a stored decision that was reused or is stale."""


class Silent:
    """A listener that says nothing."""

    def note(self, *_: Any, **__: Any) -> None:
        """Say nothing."""

    start_inspection = finish_inspection = start_trial = stage = finish_trial = note
    change_leader = start_comparison = finish_comparison = finish_repeat = note
