"""Check that each plan locked for this machine is up to date, correct and not slower, each in a worker."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from torchwise import environment
from torchwise.errors import BaselineError, GraphBreakError, InputError, InternalError, UnsupportedError
from torchwise.plan.effort import EFFORTS, EffortProfile, check_effort
from torchwise.records import Decision, Inspection, Trial
from torchwise.records.answer import Answer, Trust, judge_trust
from torchwise.records.listener import Listener
from torchwise.records.structure_differences import OTHER_WEIGHTS, another_model
from torchwise.report.facts import command_line
from torchwise.study.lock.check_results import Check, Checked, State
from torchwise.study.lock.entry import Entry, is_same_hardware
from torchwise.study.lock.file import Lock
from torchwise.study.lock.slowdown_test import THRESHOLD, Judge
from torchwise.study.one_plan import PlanStudy
from torchwise.trial import Job, Launcher

LIMIT_S = 600.0
"""Seconds after which a worker is ended, as in a search of effort "standard"."""
FRESH = "--fresh"


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """One request to check.

    Attributes:
        targets: the targets to check, or all in the file if empty.
        measure: whether plans are timed. They are always verified.
        threshold: relative change of speed to ignore.
        fullgraph: whether a model that PyTorch cannot capture as one graph fails the check.
    """

    targets: tuple[str, ...] = ()
    measure: bool = True
    threshold: float = THRESHOLD
    effort: str = "standard"
    limit_s: float = LIMIT_S
    fullgraph: bool = False

    def __post_init__(self) -> None:
        Judge(1, self.threshold)  # which refuses an invalid threshold
        check_effort(self.effort)
        if not self.limit_s > 0:
            raise InputError(f"limit is {self.limit_s!r} s, but must be above 0")


def run_check(lock: Lock, request: CheckRequest, launcher: Launcher, listener: Listener) -> Check:
    """Check every section that is for this machine.

    Raises:
        InputError: a named target is not in the lock.
    """
    return _Checks(request, launcher, listener).run(lock)


@dataclass(frozen=True, slots=True)
class _Checks:
    request: CheckRequest
    launcher: Launcher
    listener: Listener

    def run(self, lock: Lock) -> Check:
        named = tuple(dict.fromkeys(self.request.targets))
        entries = [entry for target in named or lock.targets for entry in lock.select_entries(target)]
        found = [(entry, self._check_environment(entry) or self._verify_entry(entry)) for entry in entries]
        judge = Judge(sum(isinstance(result, Trial) for _, result in found), self.request.threshold)
        rows = [self._judge_speed(e, result, judge) if isinstance(result, Trial) else result for e, result in found]
        here = {row.target for row in rows if row.state is not State.ELSEWHERE}
        rows += [make_missing_row(target) for target in named if target not in here]
        return Check(tuple(rows), self.request.threshold, judge.confidence, _trust(rows))

    def _check_environment(self, entry: Entry) -> Checked | None:
        """Return the result if it follows from the machine and its software alone, or else None."""
        locked = entry.decision.environment
        here = environment.detect(locked.device)
        if not is_same_hardware(locked, here):
            return make_row(entry, State.ELSEWHERE, "not for this machine")
        if different := entry.decision.list_changes(here):
            return make_row(entry, State.STALE, "; ".join(different), tune_again(entry))
        return None

    def _verify_entry(self, entry: Entry) -> Checked | Trial:
        """Profile the original model, then try the plan. Return the trial if it is verified and was timed."""
        decision = entry.decision
        self.listener.start_step(f"{decision.workload.target}: {decision.plan}")
        job = Job("try", decision.workload, decision.plan, effort=self._effort(measure=False))
        study = PlanStudy(job, self.launcher, self.request.limit_s, self.listener.stage)
        try:
            inspection = study.inspect()
            if changed := describe_change(decision, inspection):
                return make_row(entry, State.STALE, changed, tune_again(entry))
            if self.request.fullgraph:
                study.require_full_graph()
            if decision.plan.is_eager:
                return make_row(entry, State.GOOD, "up to date; the plan is eager, which is not timed")
            trial = study.try_plan(effort=self._effort(measure=self.request.measure))
        except GraphBreakError as error:
            return make_row(entry, State.BREAKS, str(error), "fix the break, or check without --fullgraph")
        except (
            InputError,
            BaselineError,
            UnsupportedError,
        ) as error:  # a fault of this target: the others are still checked
            return make_row(entry, State.UNKNOWN, str(error), "fix the target, and check again")
        except InternalError as error:  # a fault of Torchwise, likewise
            return make_row(entry, State.UNKNOWN, str(error), "report this bug, and check again")
        if not trial.is_verified:
            return make_row(entry, State.LOST if trial.failure else State.WRONG, trial.reason, tune_again(entry, FRESH))
        if self.request.measure:
            return trial
        return make_row(
            entry, State.GOOD, f"up to date and correct ({trial.verdict.reason if trial.verdict else ''}); not timed"
        )

    def _judge_speed(self, entry: Entry, trial: Trial, judge: Judge) -> Checked:
        """Judge the speed of a verified plan. If it differs from the locked speed, time the plan in another process.

        Intervals do not include differences between processes. So a plan is slower only if both processes find it
        slower. It is as locked if the second process finds that.
        """
        row = _judge_measurement(entry, trial, judge)
        if row.state is State.GOOD:
            return row
        again = self._verify_entry(entry)
        if not isinstance(again, Trial):
            return again
        second = _judge_measurement(entry, again, judge)
        if second.state is State.SLOWER and row.state is not State.SLOWER:
            return replace(
                second, state=State.INCONCLUSIVE, detail=f"{second.detail}; another process was inconclusive"
            )
        return second

    def _effort(self, *, measure: bool) -> EffortProfile:
        effort = EFFORTS[self.request.effort]
        return effort if measure else replace(effort, measure_s=0.0)


def describe_change(decision: Decision, inspection: Inspection) -> str:
    """Describe the differences of the model or its inputs from those of the decision, or return an empty string."""
    if inspection.structure != decision.structure:
        return another_model(decision.structure_details, inspection.structure_details)
    if inspection.inputs != decision.inputs:
        return f"the inputs differ: {' | '.join(decision.inputs)} locked, {' | '.join(inspection.inputs)} here"
    if inspection.weights != decision.weights:
        return OTHER_WEIGHTS
    if inspection.identity != decision.identity:
        return "the weights of the example inputs changed, or the mode of the model"
    return ""


def _judge_measurement(entry: Entry, trial: Trial, judge: Judge) -> Checked:
    assert trial.measurement is not None, "a verified trial is timed"
    found = judge.compare(entry, trial.measurement)
    row = {
        Answer.NO: make_row(entry, State.GOOD, f"up to date and correct; {found.detail}"),
        Answer.YES: make_row(entry, State.SLOWER, found.detail, tune_again(entry, FRESH)),
        Answer.INCONCLUSIVE: make_row(entry, State.INCONCLUSIVE, f"up to date and correct; {found.detail}"),
    }[found.slower]
    return replace(
        row,
        found=trial.measurement.speedup,
        speedup=found.speedup,
        time=found.time,
        notes=trial.measurement.notes,
    )


def _trust(rows: list[Checked]) -> Trust | None:
    """Return the reliability of the new measurements."""
    notes = [note for row in rows for note in row.notes]
    found = [row.found for row in rows if row.found]
    return judge_trust(found, notes) if found else None


def make_row(entry: Entry, state: State, detail: str, way_out: str = "") -> Checked:
    """Return the result of a section."""
    plan, locked = str(entry.decision.plan), entry.decision.speedup
    return Checked(*entry.key, state, detail, way_out, plan=plan, locked=locked)


def make_missing_row(target: str) -> Checked:
    """Return the result of a target that has no section for this machine."""
    way_out = f"torchwise tune {shlex.quote(target)} && torchwise lock {shlex.quote(target)}"
    return Checked(target, "", "", State.UNKNOWN, "the file has no section for this machine", way_out)


def tune_again(entry: Entry, *more: str) -> str:
    """Return the command that tunes again after a change of model, inputs or software, and locks the result.

    An unchanged target also needs `FRESH`, to ignore the stored study.
    """
    spec = entry.decision.workload
    return f"{command_line('tune', spec, *more, allow=entry.allow)} && torchwise lock {shlex.quote(spec.target)}"
