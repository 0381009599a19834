"""The parent's side of a probe: each has its own worker, and each ends in an observation."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TypeVar

from torchwise.diagnose.bisect.job import BisectRequest, Probe, ProbeResult
from torchwise.errors import BaselineError, TorchwiseError, UnsupportedError
from torchwise.plan import Plan
from torchwise.records import Failure, FailureKind, WorkerStage
from torchwise.records.bisection import Observation, Stage, Step, Symptom
from torchwise.records.listener import Listener
from torchwise.trial import Job, Launcher, Limits, ask_worker
from torchwise.trial.error_origin import make_failure_error

T = TypeVar("T")
PATIENCE = 3.0
"""Multiple of the longest finished probe after which a probe for a known hang is ended."""
MIN_PATIENCE_S = 20.0
BEFORE = (WorkerStage.START, WorkerStage.LOAD, WorkerStage.EAGER, WorkerStage.CAPTURE)
"""Stages of a worker before the probed code runs."""
_NAMES = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Failed|Unsupported)\b")


class ProbeRunner:
    """Runs probes, one after the other, and keeps their observations.

    Attributes:
        fault: the fault to find, once it is known.
        steps: every probe so far.
        notes: open questions, with the reason.
        spent: whether the budget has ended the search.
    """

    def __init__(self, request: BisectRequest, launcher: Launcher, listener: Listener, job: Job) -> None:
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
            BaselineError: it fails, or does not agree with its own float64 reference.
        """
        result = self.run_probe("the original model", self.make_probe("eager", self._job.plan))
        if result.observation.is_fault:
            raise BaselineError(
                f"the original model ends in a {result.observation.symptom}: {result.observation.detail}"
            )
        self._stochastic = result.stochastic

    def make_probe(self, stage: Stage, plan: Plan) -> Probe:
        """Return a probe of the whole model."""
        return Probe(replace(self._job, plan=plan), stage, stochastic=self._stochastic, timed=self._is_timed)

    def is_requested(self, observation: Observation) -> bool:
        """Return whether the user is looking for this symptom."""
        return self._request.wants(observation.symptom)

    def is_gone(self, observation: Observation) -> bool:
        """Return whether this shows that the known fault is gone.

        For a wrong answer, only a compared answer does.
        """
        compared = self.fault.symptom in (Symptom.WRONG, Symptom.NAN)
        return observation.symptom is Symptom.NONE or (not compared and not observation.is_fault)

    def run_probe(self, name: str, probe: Probe) -> ProbeResult:
        """Run one probe.

        Raises:
            InputError: the target cannot be used.
            BaselineError: the original model fails.
            UnsupportedError: this torch lacks a feature that the probe needs.
        """
        self.listener.start_step(name)
        start = time.monotonic()
        answer = self._ask(replace(probe, timed=self._is_timed), ProbeResult)
        result = _classify_failure(answer) if isinstance(answer, Failure) else answer
        step = Step(name, result.observation, time.monotonic() - start)
        self.steps.append(step)
        self.listener.finish_probe(step)
        return result

    def shows(self, name: str, probe: Probe) -> bool:
        """Return whether a probe shows the known fault: not if it cannot run, or if the budget is spent."""
        result = self.try_probe(name, probe)
        return result is not None and result.observation.is_same(self.fault)

    def try_probe(self, name: str, probe: Probe) -> ProbeResult | None:
        """Run one probe if the budget allows.

        Return None if the subject cannot run by itself.
        """
        if self._is_out_of_time():
            return None
        try:
            return self.run_probe(name, probe)
        except TorchwiseError:  # a part may fail or not be compiled, and an option may be missing
            return None

    def run_task(self, name: str, probe: Probe, kind: type[T]) -> T | Failure:
        """Have a worker do something other than a probe, and return its answer of this kind."""
        self.listener.start_step(name)
        return self._ask(probe, kind)

    def note(self, text: str) -> None:
        """Keep and report an open question."""
        self.notes.append(text)
        self.listener.note(text)

    @property
    def _is_timed(self) -> bool:
        """Whether to time: yes, until the fault is known to be of another kind."""
        searches_slow = self._request.wants(Symptom.SLOW)
        return searches_slow and self.fault.symptom in (Symptom.NONE, Symptom.SLOW)

    def _ask(self, probe: Probe, kind: type[T]) -> T | Failure:
        return ask_worker(self._launcher, probe, kind, Limits.from_free_memory(self._limit()), self.listener.stage)

    def _limit(self) -> float:
        """Return the seconds for a probe: after a known hang, the next probes get a shorter limit."""
        limit = self._request.limit_s
        ended = [step.seconds for step in self.steps if step.observation.symptom is not Symptom.HANG]
        if self.fault.symptom is not Symptom.HANG or not ended:
            return limit
        return min(limit, max(MIN_PATIENCE_S, PATIENCE * max(ended)))

    def _is_out_of_time(self) -> bool:
        if time.monotonic() >= self._end and not self.spent:
            self.spent = True
            self.note("the budget is spent: the search stopped here, and the result is incomplete")
        return self.spent


def _classify_failure(failure: Failure) -> ProbeResult:
    """Turn a failed worker into an observation.

    Raises:
        BaselineError: it ended before the probed code ran.
        InternalError: likewise, and the model is not the cause.
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
