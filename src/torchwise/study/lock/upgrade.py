"""Check locked plans on another PyTorch before the upgrade: right or wrong, faster or slower, and which to pin.

A plan is verified there, and timed in processes of both environments in turn. Two neighbouring processes make a pair,
and the ratio of their times is one value. So a machine that slows down during the check slows both sides of a pair, and
passes for no regression. The interval over the pairs includes the differences between processes.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from torchwise.study.one_plan import PlanStudy
from torchwise.trial import Job, Launcher, Limits, ask_worker, measure_again
from torchwise.trial.interpreter_launcher import EnvironmentJob

MIN_PAIRS = 3
"""Pairs of processes from which a result may count. A slower plan must be so with one more pair, too."""
MORE_PAIRS = 3
"""Pairs beyond the processes of the effort, if these leave the result open."""
NOT_HERE = "it does not hold here, before any upgrade"
Pair = tuple[Measurement, Measurement]
"""Measurements of a plan here and there, in neighbouring processes."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two environments: its workers, its name in results, and the plan's compile caches there."""

    launcher: Launcher
    name: str
    caches: str = ""


def run_upgrade_check(
    lock: Lock, request: CheckRequest, here: Launcher, there: Launcher, listener: Listener, torch: str | None = None
) -> Check:
    """Check every section that is for this machine on the PyTorch of another environment.

    Args:
        here: runs workers in this environment, in the same way as there, as processes that start otherwise run
            otherwise.
        there: runs workers in the other one.
        torch: the version of PyTorch that must be there, or None for any.

    Raises:
        InputError: a named target is not in the lock, or the other environment cannot run Torchwise or has another
            PyTorch than `torch`.
    """
    named = tuple(dict.fromkeys(request.targets))
    entries = [entry for target in named or lock.targets for entry in lock.select_entries(target)]
    rows = [UpgradeCheck(entry, request, here, there, listener, torch).run() for entry in entries]
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
    torch: str | None

    def run(self) -> Checked:
        """Return the result."""
        locked = self.entry.decision.environment
        own = environment.detect(locked.device)
        if not is_same_hardware(locked, own):
            return make_row(self.entry, State.ELSEWHERE, "not for this machine")
        if different := self.entry.decision.list_changes(own):
            detail = f"{NOT_HERE}: {'; '.join(different)}"
            return make_row(self.entry, State.STALE, detail, tune_again(self.entry))
        other = self._describe_other()
        row = self.check(Side(self.here, f"torch {own.torch}"), Side(self.there, f"torch {other.torch}"))
        if row.state.is_regression:
            or_else = f", or with torch {other.torch}: {row.way_out}" if row.way_out else ""
            row = replace(row, way_out=f"pin torch=={own.torch}{or_else}")
        return replace(row, against=f"torch {other.torch}")

    def _describe_other(self) -> Environment:
        job, limits = Job("try", self.entry.decision.workload), Limits.from_free_memory(self.request.limit_s)
        found = ask_worker(self.there, EnvironmentJob(job), Environment, limits, self.listener.stage)
        if isinstance(found, Failure):
            last = (found.traceback.strip().splitlines() or [""])[-1]
            raise InputError(
                f"the other environment cannot run Torchwise: {found}{f' ({last})' if last else ''}. Install the "
                "requirements of Torchwise there"
            )
        if self.torch and not _is_version(found.torch, self.torch):
            raise InputError(
                f"torch {self.torch} is asked for, but the workers of its environment have torch {found.torch}: make "
                "an environment with it yourself, and give its interpreter with --against-python"
            )
        return found

    def check(self, here: Side, there: Side) -> Checked:
        """Verify the plan there, and then time it in both environments in turn."""
        again = tune_again(self.entry)
        with tempfile.TemporaryDirectory(prefix="torchwise-upgrade-") as folder:
            here, there = replace(here, caches=f"{folder}/here"), replace(there, caches=f"{folder}/there")
            found = self.try_plan(there)
            fault = self.find_fault(found)
            if fault is not None and not fault.state.is_regression:
                return fault
            if fault is None and not self.request.measure:
                return make_row(self.entry, State.GOOD, f"correct with {there.name}; not timed")
            own = self.try_plan(here, is_locked=True)
            own_fault = self.find_fault(own)
            if own_fault is None and fault is not None:
                return fault
            if own_fault is not None:
                is_stale = own_fault.state is State.STALE or (fault is not None and own_fault.state.is_regression)
                if is_stale:  # no upgrade is to blame
                    return make_row(self.entry, State.STALE, f"{NOT_HERE}: {own_fault.detail}", again)
                detail = f"with {here.name}, of this environment: {own_fault.detail}"
                return make_row(self.entry, State.UNKNOWN, detail, again)
            return self.time_in_turn(here, there, pair_of(own, found))

    def find_fault(self, found: Trial | Checked) -> Checked | None:
        """Return why a plan is not verified in one of the environments, or None if it is."""
        if isinstance(found, Checked):
            return found
        if found.is_verified:
            return None
        return make_row(self.entry, _name_loss(found.failure), found.reason, tune_again(self.entry))

    def try_plan(self, side: Side, *, is_locked: bool = False) -> Trial | Checked:
        """Profile the original model, and try the plan, in one of the environments.

        `is_locked` says that the model must be the locked one: another PyTorch may give it other weights.
        """
        decision = self.entry.decision
        self.listener.start_step(f"{decision.workload.target} with {side.name}: {decision.plan}")
        study = PlanStudy(self.make_job(), side.launcher, self.request.limit_s, self.listener.stage)
        try:
            inspection = study.inspect()
            if is_locked and (changed := describe_change(decision, inspection)):
                return make_row(self.entry, State.STALE, changed, tune_again(self.entry))
            if self.request.fullgraph:
                study.require_full_graph()
            if decision.inputs and inspection.inputs != decision.inputs:
                return make_row(self.entry, State.UNKNOWN, f"with {side.name} the inputs differ from the locked ones")
            return study.try_plan(cache_dir=side.caches)
        except GraphBreakError as error:
            return make_row(self.entry, State.BREAKS, f"with {side.name}: {error}", "check without --fullgraph")
        except BaselineError as error:
            again = tune_again(self.entry)
            return make_row(self.entry, State.LOST, f"with {side.name} the original model fails: {error}", again)
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
            timed = [self._measure(side) for side in order]
            for side, found in zip(order, timed, strict=True):
                if isinstance(found, Failure):
                    state = State.LOST if side is there else State.UNKNOWN
                    if found.kind in (FailureKind.TIMED_OUT, FailureKind.INTERFERED):  # it ran in time before
                        state = State.INCONCLUSIVE
                    return make_row(self.entry, state, f"with {side.name} {found}", tune_again(self.entry))
            own, other = timed if order[0] is here else reversed(timed)
            assert isinstance(own, Measurement)
            assert isinstance(other, Measurement)
            pairs.append((own, other))

    def _measure(self, side: Side) -> Measurement | Failure:
        limits = Limits.from_free_memory(self.request.limit_s)
        return measure_again(side.launcher, self.make_job(), limits, self.listener.stage, [side.caches])


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


def _is_version(found: str, asked: str) -> bool:
    """Whether PyTorch is of a version, which may leave out zeros at its end, and the name of the build."""
    return re.fullmatch(re.escape(asked) + r"(\.0)*(\+.*)?", found) is not None


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
