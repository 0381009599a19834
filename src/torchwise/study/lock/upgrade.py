"""Check locked plans on another PyTorch before the upgrade: right or wrong, faster or slower, and which to pin.

A plan is verified there, and timed in processes of both environments in turn. Two neighbouring processes make a pair,
and the ratio of their times is one value. So a machine that slows down during the check slows both sides of a pair, and
passes for no regression. The interval over the pairs includes the differences between processes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torchwise import environment
from torchwise.environment import Environment
from torchwise.errors import BaselineError, GraphBreakError, InputError, InternalError, UnsupportedError
from torchwise.plan.effort import EFFORTS
from torchwise.records import Failure, FailureKind, Interval, Measurement, Trial
from torchwise.records import format as show
from torchwise.records.listener import Listener
from torchwise.records.processes import ratio_across
from torchwise.records.statistics import CONFIDENCE, ratio_of
from torchwise.study.lock.check import CheckRequest, describe_change, make_missing_row, make_row, tune_again
from torchwise.study.lock.check_results import Check, Checked, State
from torchwise.study.lock.entry import Entry, is_same_hardware
from torchwise.study.lock.file import Lock
from torchwise.study.lock.other_environment import keep_software, name_software
from torchwise.study.one_plan import PlanStudy
from torchwise.trial import Job, Launcher, Limits, measure_again

MIN_PAIRS = 3
"""Pairs of processes from which a result may count. A slower plan must be so with one more pair, too."""
MORE_PAIRS = 3
"""Pairs beyond the processes of the effort, if these leave the result open."""
NOT_HERE = "it does not hold here, before any upgrade"
T = TypeVar("T")
Pair = tuple[Measurement, Measurement]
"""Measurements of a plan here and there, in neighbouring processes."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two environments: its workers, its name in results, and the plan's compile caches there."""

    launcher: Launcher
    name: str
    caches: str = ""


def run_upgrade_check(
    lock: Lock, request: CheckRequest, here: Launcher, there: Launcher, listener: Listener, other: Environment
) -> Check:
    """Check every section that is for this machine on the PyTorch of another environment.

    Args:
        here: runs workers in this environment, in the same way as there, as processes that start otherwise run
            otherwise.
        there: runs workers in the other one.
        other: the other one, by `describe_other`.

    Raises:
        InputError: a named target is not in the lock.
    """
    named = tuple(dict.fromkeys(request.targets))
    entries = [entry for target in named or lock.targets for entry in lock.select_entries(target)]
    rows = [UpgradeCheck(entry, request, here, there, listener, other).run() for entry in entries]
    known = {row.target for row in rows if row.state is not State.ELSEWHERE}
    rows += [make_missing_row(target) for target in named if target not in known]
    return Check(tuple(rows), request.threshold, CONFIDENCE)


@dataclass(frozen=True)
class UpgradeCheck:
    """The check of one plan. The arguments are those of `run_upgrade_check`."""

    entry: Entry
    request: CheckRequest
    here: Launcher
    there: Launcher
    listener: Listener
    other: Environment

    def run(self) -> Checked:
        """Return the result."""
        locked = self.entry.decision.environment
        own = environment.detect(locked.device)
        if not is_same_hardware(locked, own):
            return make_row(self.entry, State.ELSEWHERE, "not for this machine")
        if different := self.entry.decision.list_changes(own):
            detail = f"{NOT_HERE}: {'; '.join(different)}"
            return make_row(self.entry, State.STALE, detail, tune_again(self.entry))
        against = name_software(self.other, own)
        row = self.check(Side(self.here, name_software(own, self.other)), Side(self.there, against))
        if row.state is State.STALE:  # so it is without any upgrade, and to pin something would not help
            return row
        if row.state.is_regression:
            or_else = f", or with {against}: {row.way_out}" if row.way_out else ""
            row = replace(row, way_out=f"{keep_software(own, self.other)}{or_else}")
        return replace(row, against=against)

    def check(self, here: Side, there: Side) -> Checked:
        """Verify the plan there, and then time it in both environments in turn."""
        with tempfile.TemporaryDirectory(prefix="torchwise-upgrade-") as folder:
            here, there = replace(here, caches=f"{folder}/here"), replace(there, caches=f"{folder}/there")
            found = self.try_plan(there)
            fault = self.find_fault(found)
            if fault is not None and not fault.state.is_regression:
                return fault
            is_enough = fault is None and not self.request.measure
            own = self.check_model(here) if is_enough else self.try_plan(here, is_locked=True)
            if (own_fault := self.find_fault(own)) is not None:
                return self._judge_fault_here(here, own_fault, fault)
            if fault is not None:
                return fault
            if own is None:
                return make_row(self.entry, State.GOOD, f"correct with {there.name}; not timed")
            return self.time_in_turn(here, there, pair_of(own, found))

    def _judge_fault_here(self, here: Side, own_fault: Checked, fault: Checked | None) -> Checked:
        """Judge what does not hold in this environment. If it does not hold there either, no upgrade is to blame."""
        if own_fault.state is State.STALE or (fault is not None and own_fault.state.is_regression):
            return make_row(self.entry, State.STALE, f"{NOT_HERE}: {own_fault.detail}", own_fault.way_out)
        state = State.INCONCLUSIVE if own_fault.state is State.INCONCLUSIVE else State.UNKNOWN
        detail = f"with {here.name}, of this environment: {own_fault.detail}"
        return make_row(self.entry, state, detail, own_fault.way_out)

    def find_fault(self, found: Trial | Checked | None) -> Checked | None:
        """Return why a plan is not verified in one of the environments, or None if nothing is known against it."""
        if found is None or isinstance(found, Checked):
            return found
        if found.is_verified:
            return None
        return make_row(self.entry, _name_loss(found.failure), found.reason, tune_again(self.entry))

    def try_plan(self, side: Side, *, is_locked: bool = False) -> Trial | Checked:
        """Profile the original model, and try the plan, in one of the environments.

        `is_locked` says that the model must be the locked one: another PyTorch may give it other weights.
        """
        study = self._start_study(side)
        return self.guard(
            side,
            lambda: self._check_model(study, side, is_locked=is_locked) or study.try_plan(cache_dir=side.caches),
        )

    def check_model(self, side: Side) -> Checked | None:
        """Profile the original model in this environment. Return the result if it is not the locked one."""
        study = self._start_study(side)
        return self.guard(side, lambda: self._check_model(study, side, is_locked=True))

    def _start_study(self, side: Side) -> PlanStudy:
        decision = self.entry.decision
        self.listener.start_step(f"{decision.workload.target} with {side.name}: {decision.plan}")
        return PlanStudy(self.make_job(), side.launcher, self.request.limit_s, self.listener.stage)

    def _check_model(self, study: PlanStudy, side: Side, *, is_locked: bool) -> Checked | None:
        decision, inspection = self.entry.decision, study.inspect()
        if is_locked and (changed := describe_change(decision, inspection)):
            return make_row(self.entry, State.STALE, changed, tune_again(self.entry))
        if self.request.fullgraph:
            study.require_full_graph()
        if decision.inputs and inspection.inputs != decision.inputs:
            return make_row(self.entry, State.UNKNOWN, f"with {side.name} the inputs differ from the locked ones")
        return None

    def guard(self, side: Side, work: Callable[[], T]) -> T | Checked:
        """Do some work in one of the environments. An error there is the result of this check, and ends no other."""
        try:
            return work()
        except GraphBreakError as error:
            return make_row(self.entry, State.BREAKS, f"with {side.name}: {error}", "check without --fullgraph")
        except BaselineError as error:  # no plan can be tuned for it there
            return make_row(self.entry, State.LOST, f"with {side.name} the original model fails: {error}")
        except (InputError, UnsupportedError, InternalError) as error:
            return make_row(self.entry, State.UNKNOWN, f"with {side.name}: {error}", "fix that, and check again")

    def make_job(self) -> Job:
        """Return the order to try the plan."""
        effort = EFFORTS[self.request.effort]
        effort = effort if self.request.measure else replace(effort, measure_s=0.0)
        return Job("try", self.entry.decision.workload, self.entry.decision.plan, effort=effort)

    def time_in_turn(self, here: Side, there: Side, first: Pair) -> Checked:
        """Time the plan in processes of both environments, the order reversed each time, until the result is clear."""
        pairs, most = [first], EFFORTS[self.request.effort].processes + MORE_PAIRS
        before = State.INCONCLUSIVE
        while True:
            row = judge_pairs(self.entry, pairs, self.request.threshold, here.name, there.name)
            is_clear = row.state is not State.INCONCLUSIVE and (row.state is not State.SLOWER or before is State.SLOWER)
            if len(pairs) >= MIN_PAIRS and (is_clear or len(pairs) >= most):
                is_late = row.state is State.SLOWER and not is_clear  # no pair is left to confirm it
                return replace(row, state=State.INCONCLUSIVE, way_out="") if is_late else row
            before = row.state if len(pairs) >= MIN_PAIRS else State.INCONCLUSIVE
            # The trials of the first pair were made there and then here.
            order = (here, there) if len(pairs) % 2 else (there, here)
            timed = {side is here: self._measure(side) for side in order}
            own, other = timed[True], timed[False]
            if not isinstance(own, Measurement):  # then the upgrade is not to blame
                return self._judge_failure(here, own, State.UNKNOWN)
            if not isinstance(other, Measurement):
                return self._judge_failure(there, other, State.LOST)
            pairs.append((own, other))

    def _measure(self, side: Side) -> Measurement | Failure | Checked:
        job, limits, stage = self.make_job(), Limits.from_free_memory(self.request.limit_s), self.listener.stage

        def measure() -> Measurement | Failure:
            found = measure_again(side.launcher, job, limits, stage, [side.caches])
            return found if isinstance(found, Failure) else found.measurement

        return self.guard(side, measure)

    def _judge_failure(self, side: Side, found: Failure | Checked, state: State) -> Checked:
        """Judge a process that ran before, and fails when it is timed once more."""
        if isinstance(found, Checked):
            return replace(found, state=state if found.state.is_regression else found.state)
        if found.kind in (FailureKind.TIMED_OUT, FailureKind.INTERFERED):  # it ran in time before
            state = State.INCONCLUSIVE
        return make_row(self.entry, state, f"with {side.name} {found}", tune_again(self.entry))


def pair_of(own: Trial | Checked, found: Trial | Checked) -> Pair:
    """Return the measurements of verified trials here and there."""
    assert isinstance(own, Trial)
    assert isinstance(found, Trial)
    assert own.measurement is not None
    assert found.measurement is not None
    return own.measurement, found.measurement


def _name_loss(failure: Failure | None) -> State:
    """Return the state of a plan that is not verified there. A worker that others held up tells nothing of it."""
    if failure is None:
        return State.WRONG
    return State.INCONCLUSIVE if failure.kind is FailureKind.INTERFERED else State.LOST


def judge_pairs(entry: Entry, pairs: Sequence[Pair], threshold: float, here: str, there: str) -> Checked:
    """Judge the times of a plan in two environments by pairs of processes."""
    device = entry.decision.workload.device

    def compare(time: Callable[[Measurement], Interval]) -> Interval:
        return ratio_across(tuple(ratio_of(time(other), time(own)) for own, other in pairs), device)

    plan, eager = compare(lambda m: m.candidate_time), compare(lambda m: m.baseline_time)
    state = State.INCONCLUSIVE
    if plan.low > 1 + threshold:
        state = State.SLOWER
    elif plan.high < 1 / (1 + threshold):
        state = State.FASTER
    elif plan.high <= 1 + threshold:
        state = State.GOOD
    detail = (
        f"correct with {there}; a call takes {show.speedup(plan)} the time with {here}, and eager "
        f"{show.speedup(eager)}, in {show.pluralize(len(pairs), 'pair')} of processes"
    )
    row = make_row(entry, state, detail, tune_again(entry) if state is State.SLOWER else "")
    return replace(row, time=plan, notes=tuple(note for pair in pairs for one in pair for note in one.notes))
