"""The parent's side of a probe: each has its own worker, and every outcome is an observation."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Protocol

from torchwise.diagnose.bisect.job import Probe, ProbeResult
from torchwise.diagnose.bisect.request import BisectRequest
from torchwise.errors import BaselineError, TorchwiseError, UnsupportedError
from torchwise.plan import Plan
from torchwise.records import Failure, FailureKind, codec
from torchwise.records.bisection import Observation, Stage, Step, Symptom
from torchwise.trial import Job, Launcher, Limits
from torchwise.trial.error_origin import make_failure_error

PATIENCE = 3.0
"""Multiple of the longest finished probe after which a probe for a known hang is given up."""
MIN_PATIENCE_S = 20.0
BEFORE = ("start", "load", "eager", "capture")
"""Stages of a worker before the probed code runs."""
_NAMES = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Failed|Unsupported)\b")


class BisectListener(Protocol):
    """Hears about the progress of a bisection."""

    def start_probe(self, what: str) -> None:
        """A probe has begun."""

    def stage(self, name: str) -> None:
        """The worker has entered a stage."""

    def finish_probe(self, step: Step) -> None:
        """A probe is done."""

    def note(self, text: str) -> None:
        """A note for the user."""


class Looking:
    """Runs probes, one after the other, and keeps their observations.

    Attributes:
        fault: the fault to find, once it is known.
        steps: every probe so far.
        notes: questions that stayed open, and why.
        spent: whether the budget has ended the search.
    """

    def __init__(self, request: BisectRequest, launcher: Launcher, listener: BisectListener, job: Job) -> None:
        self.listener = listener
        self.fault = Observation(Symptom.NONE)
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.spent = False
        self._request = request
        self._launcher = launcher
        self._job = job
        self._stochastic = False
        self._end = time.monotonic() + (request.budget_s or float("inf"))

    def begin(self) -> None:
        """Probe the model itself.

        Raises:
            BaselineError: it fails, or is not right by its own float64 reference.
        """
        seen = self.run_probe("the model itself", self.order("eager", self._job.plan))
        if seen.sighting.is_fault:
            raise BaselineError(
                f"the model itself, run plainly, ends in a {seen.sighting.symptom}: {seen.sighting.detail}"
            )
        self._stochastic = seen.stochastic

    def order(self, stage: Stage, plan: Plan) -> Probe:
        """Return the order for a probe of the whole model."""
        return Probe(replace(self._job, plan=plan), stage, stochastic=self._stochastic, timed=self._is_timed)

    def is_requested(self, sighting: Observation) -> bool:
        """Return whether the user is looking for this symptom."""
        return self._request.wants(sighting.symptom)

    def is_gone(self, sighting: Observation) -> bool:
        """Return whether this shows that the known fault is gone.

        For a wrong answer, only a compared answer does.
        """
        compared = self.fault.symptom in (Symptom.WRONG, Symptom.NAN)
        return sighting.symptom is Symptom.NONE or (not compared and not sighting.is_fault)

    def run_probe(self, what: str, order: Probe) -> ProbeResult:
        """Run one probe.

        Raises:
            InputError: the target cannot be used.
            BaselineError: the model itself fails.
            UnsupportedError: this torch lacks a feature that the probe needs.
        """
        self.listener.start_probe(what)
        start = time.monotonic()
        answer = self._run(replace(order, timed=self._is_timed))
        seen = _classify_failure(answer) if isinstance(answer, Failure) else codec.from_json(answer, ProbeResult)
        step = Step(what, seen.sighting, time.monotonic() - start)
        self.steps.append(step)
        self.listener.finish_probe(step)
        return seen

    def shows(self, what: str, order: Probe) -> bool:
        """Return whether a probe shows the known fault: not if it cannot run, or if the budget is spent."""
        seen = self.try_probe(what, order)
        return seen is not None and seen.sighting.is_same(self.fault)

    def try_probe(self, what: str, order: Probe) -> ProbeResult | None:
        """Run one probe if the budget allows.

        Return None if the subject cannot run by itself.
        """
        if self._is_out_of_time():
            return None
        try:
            return self.run_probe(what, order)
        except TorchwiseError:  # a part need not run or be compiled, and an option need not be there
            return None

    def ask(self, what: str, order: Probe) -> str | Failure:
        """Have a worker do something other than a probe."""
        self.listener.start_probe(what)
        return self._run(order)

    def note(self, text: str) -> None:
        """Keep and report a question that stayed open."""
        self.notes.append(text)
        self.listener.note(text)

    @property
    def _is_timed(self) -> bool:
        """Whether to time: yes, until the fault is known to be another."""
        wanted = self._request.wants(Symptom.SLOW)
        return wanted and self.fault.symptom in (Symptom.NONE, Symptom.SLOW)

    def _run(self, order: Probe) -> str | Failure:
        return self._launcher.run(order, Limits.from_free_memory(self._limit()), self.listener.stage)

    def _limit(self) -> float:
        """Return the seconds for a probe: once a hang is known, the next ones need not be waited for as long."""
        limit = self._request.limit_s
        ended = [step.seconds for step in self.steps if step.observation.symptom is not Symptom.HANG]
        if self.fault.symptom is not Symptom.HANG or not ended:
            return limit
        return min(limit, max(MIN_PATIENCE_S, PATIENCE * max(ended)))

    def _is_out_of_time(self) -> bool:
        if time.monotonic() >= self._end and not self.spent:
            self.spent = True
            self.note("the budget is spent: what follows is as far as the search came")
        return self.spent


def _classify_failure(failure: Failure) -> ProbeResult:
    """Turn a worker's end into an observation.

    Raises:
        BaselineError: it ended before the probed code ran.
        InternalError: likewise, and the model is not to blame.
        UnsupportedError: this torch lacks a feature that the probe needs.
    """
    if failure.kind is FailureKind.UNSUPPORTED:
        raise UnsupportedError(failure.message)
    if failure.stage in BEFORE:
        raise make_failure_error(failure)
    if failure.kind is FailureKind.TIMED_OUT:
        return ProbeResult(Observation(Symptom.HANG, failure.message))
    return ProbeResult(Observation(Symptom.CRASH, str(failure), _kind(failure)))


def _kind(failure: Failure) -> str:
    """Return the signal, or the names of the errors in a message, including the errors that wrap others."""
    if failure.kind is FailureKind.RAISED:
        return ", ".join(dict.fromkeys(_NAMES.findall(failure.message))) or "error"
    return failure.message if failure.kind is FailureKind.DIED else failure.kind.value
