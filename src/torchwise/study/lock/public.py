"""Check public functions on another PyTorch before the upgrade: the same answers as here, and as fast.

The referee of pairs compares them: the function here is the reference, and the same one there is the candidate, in a
process of the other interpreter. So it shows if an operator means something else there. Then both are timed in turn,
as locked plans are.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace

from torchwise import environment
from torchwise.environment import Environment
from torchwise.errors import BaselineError, InputError, InternalError, UnsupportedError
from torchwise.plan import EAGER, Numerics
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import CheckName, Decision, Failure, FailureKind, Outcome, Verdict
from torchwise.records.listener import Listener
from torchwise.records.statistics import CONFIDENCE
from torchwise.study.lock.check import CheckRequest, make_row
from torchwise.study.lock.check_results import Check, Checked, State
from torchwise.study.lock.entry import Entry
from torchwise.study.lock.upgrade import Side, UpgradeCheck, pair_of
from torchwise.trial import Job, Launcher, Limits, ask_worker
from torchwise.trial.pair_job import PairJob, PairJudgement


def check_public(
    targets: tuple[str, ...],
    request: CheckRequest,
    here: Launcher,
    there: Launcher,
    listener: Listener,
    python: str,
    other: Environment,
) -> Check:
    """Check functions, by targets that come with inputs, in the environment of another interpreter.

    The other arguments are those of `run_upgrade_check`.
    """
    rows = [PublicCheck(_make_entry(target), request, here, there, listener, other, python).run() for target in targets]
    return Check(tuple(rows), request.threshold, CONFIDENCE)


def _make_entry(target: str) -> Entry:
    """Return what stands for a section of the lock: eager, in this environment."""
    spec = WorkloadSpec(target, device=environment.default_device())
    own = environment.detect(spec.device)
    decision = Decision(EAGER, "a public function", None, None, 0.0, 0.0, 0.0, None, spec, "", "", (), own)
    return Entry(decision, Numerics.EXACT, "", None)


@dataclass(frozen=True)
class PublicCheck(UpgradeCheck):
    """The check of one function. `python` is the other interpreter."""

    python: str = ""

    def check(self, here: Side, there: Side) -> Checked:
        """Compare the function there with that here, and then time both in turn."""
        if (found := self._prove(here, there)) is not None:
            return found
        if not self.request.measure:
            return make_row(self.entry, State.GOOD, f"with {there.name} it answers as here; not timed")
        with tempfile.TemporaryDirectory(prefix="torchwise-upgrade-") as folder:
            here, there = replace(here, caches=f"{folder}/here"), replace(there, caches=f"{folder}/there")
            other, own = self.try_plan(there), self.try_plan(here)
            if (fault := self.find_fault(own)) is not None:
                detail = f"with {here.name}, of this environment: {fault.detail}"
                return make_row(self.entry, State.UNKNOWN, detail)
            if (fault := self.find_fault(other)) is not None:
                return replace(fault, way_out="")
            return replace(self.time_in_turn(here, there, pair_of(own, other)), way_out="")

    def _prove(self, here: Side, there: Side) -> Checked | None:
        """Return the result if the answers there are not those here, or None if they are."""
        target = self.entry.decision.workload.target
        self.listener.start_step(f"{target} with {there.name}: the answers of {here.name}")
        job = PairJob(
            Job("try", self.entry.decision.workload), target, limit_s=self.request.limit_s, python=self.python
        )
        limits = Limits.from_free_memory(self.request.limit_s)
        try:
            found = ask_worker(self.here, job, PairJudgement, limits, self.listener.stage)
        except (InputError, BaselineError, UnsupportedError, InternalError) as error:
            return make_row(self.entry, State.UNKNOWN, str(error), "fix that, and check again")
        if isinstance(found, Failure):
            is_late = found.kind in (FailureKind.TIMED_OUT, FailureKind.INTERFERED)
            return make_row(self.entry, State.INCONCLUSIVE if is_late else State.UNKNOWN, f"the comparison {found}")
        verdict = Verdict(found.checks)
        if verdict.outcome is Outcome.PASS:
            return None
        failed = next((check for check in found.checks if check.outcome is Outcome.FAIL), None)
        state = State.UNKNOWN if failed is None else State.LOST if failed.name == CheckName.ANSWER else State.WRONG
        smallest = f"; the smallest inputs: {found.failing.inputs}" if found.failing else ""
        return make_row(self.entry, state, f"with {there.name} {verdict.reason}{smallest}")
