"""The parent's side of a look: a worker each, and whatever it does is a sighting."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Protocol

from torchwise.diagnose.bisect.job import Look, Seen
from torchwise.diagnose.bisect.request import BisectRequest
from torchwise.errors import BaselineError, TorchwiseError, UnsupportedError
from torchwise.plan import Plan
from torchwise.records import Failure, FailureKind, codec
from torchwise.records.bisection import Sighting, Stage, Step, Symptom
from torchwise.trial import Job, Launcher, Limits
from torchwise.trial.blame import blamed

PATIENCE = 3.0
"""Times the longest look that ended, after which a look for a known hang is given up."""
LEAST_PATIENCE_S = 20.0
BEFORE = ("start", "load", "eager", "capture")
"""Stages of a worker in which nothing that is looked at runs yet."""
_NAMES = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Failed|Unsupported)\b")


class BisectListener(Protocol):
    """Hears how a bisection goes on."""

    def looking(self, what: str) -> None:
        """A look is begun."""

    def stage(self, name: str) -> None:
        """The worker entered a stage."""

    def seen(self, step: Step) -> None:
        """A look is done."""

    def note(self, text: str) -> None:
        """Something the user should know."""


class Looking:
    """Takes looks, one after the other, and keeps what was seen.

    Attributes:
        fault: what is looked for, once it is known.
        steps: every look so far.
        notes: what could not be told, and why.
        spent: whether the budget has ended the search.
    """

    def __init__(self, request: BisectRequest, launcher: Launcher, listener: BisectListener, job: Job) -> None:
        self.listener = listener
        self.fault = Sighting(Symptom.NONE)
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.spent = False
        self._request = request
        self._launcher = launcher
        self._job = job
        self._stochastic = False
        self._end = time.monotonic() + (request.budget_s or float("inf"))

    def begin(self) -> None:
        """Look at the model itself.

        Raises:
            BaselineError: it fails, or is not right by its own float64 reference.
        """
        seen = self.look("the model itself", self.order("eager", self._job.plan))
        if seen.sighting.is_fault:
            raise BaselineError(
                f"the model itself, run plainly, ends in a {seen.sighting.symptom}: {seen.sighting.detail}"
            )
        self._stochastic = seen.stochastic

    def order(self, stage: Stage, plan: Plan) -> Look:
        """Return what a worker is told for a look at the whole model."""
        return Look(replace(self._job, plan=plan), stage, stochastic=self._stochastic, timed=self._is_timed)

    def is_wanted(self, sighting: Sighting) -> bool:
        """Whether this is what the user looks for."""
        return self._request.wants(sighting.symptom)

    def is_gone(self, sighting: Sighting) -> bool:
        """Whether this shows that the known fault is gone; of a wrong answer, only an answer that was compared does."""
        compared = self.fault.symptom in (Symptom.WRONG, Symptom.NAN)
        return sighting.symptom is Symptom.NONE or (not compared and not sighting.is_fault)

    def look(self, what: str, order: Look) -> Seen:
        """Look once.

        Raises:
            InputError: the target cannot be used.
            BaselineError: the model itself fails.
            UnsupportedError: this torch lacks what the look needs.
        """
        self.listener.looking(what)
        start = time.monotonic()
        answer = self._run(replace(order, timed=self._is_timed))
        seen = _seen(answer) if isinstance(answer, Failure) else codec.from_json(answer, Seen)
        step = Step(what, seen.sighting, time.monotonic() - start)
        self.steps.append(step)
        self.listener.seen(step)
        return seen

    def shows(self, what: str, order: Look) -> bool:
        """Whether a look shows the known fault; not where it cannot be taken, or the budget is spent."""
        seen = self.try_look(what, order)
        return seen is not None and seen.sighting.is_same(self.fault)

    def try_look(self, what: str, order: Look) -> Seen | None:
        """Look once, if the budget allows; None where what is looked at cannot be run by itself."""
        if self._is_spent():
            return None
        try:
            return self.look(what, order)
        except TorchwiseError:  # a part need not run or be compiled, and an option need not be there
            return None

    def ask(self, what: str, order: Look) -> str | Failure:
        """Have a worker do what is no look."""
        self.listener.looking(what)
        return self._run(order)

    def note(self, text: str) -> None:
        """Keep and say what could not be told."""
        self.notes.append(text)
        self.listener.note(text)

    @property
    def _is_timed(self) -> bool:
        """Time is taken until the fault is known to be another."""
        wanted = self._request.wants(Symptom.SLOW)
        return wanted and self.fault.symptom in (Symptom.NONE, Symptom.SLOW)

    def _run(self, order: Look) -> str | Failure:
        return self._launcher.run(order, Limits.of_this_machine(self._limit()), self.listener.stage)

    def _limit(self) -> float:
        """Return the seconds for a look: once a hang is known, its next sightings need not be waited for as long."""
        limit = self._request.limit_s
        ended = [step.seconds for step in self.steps if step.sighting.symptom is not Symptom.HANG]
        if self.fault.symptom is not Symptom.HANG or not ended:
            return limit
        return min(limit, max(LEAST_PATIENCE_S, PATIENCE * max(ended)))

    def _is_spent(self) -> bool:
        if time.monotonic() >= self._end and not self.spent:
            self.spent = True
            self.note("the budget is spent: what follows is as far as the search came")
        return self.spent


def _seen(failure: Failure) -> Seen:
    """Turn a worker's end into a sighting.

    Raises:
        BaselineError: it ended before what is looked at ran.
        InternalError: likewise, and the model is not to blame.
        UnsupportedError: this torch lacks what the look needs.
    """
    if failure.kind is FailureKind.UNSUPPORTED:
        raise UnsupportedError(failure.message)
    if failure.stage in BEFORE:
        raise blamed(failure)
    if failure.kind is FailureKind.TIMED_OUT:
        return Seen(Sighting(Symptom.HANG, failure.message))
    return Seen(Sighting(Symptom.CRASH, str(failure), _kind(failure)))


def _kind(failure: Failure) -> str:
    """Return the signal, or the names of the errors in a message: those that wrap another name it, too."""
    if failure.kind is FailureKind.RAISED:
        return ", ".join(dict.fromkeys(_NAMES.findall(failure.message))) or "error"
    return failure.message if failure.kind is FailureKind.DIED else failure.kind.value
