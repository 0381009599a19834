"""The other process: it searches tier by tier, prepares the plans it finds, and reports in lines of JSON.

It only uses processor time that the program leaves idle, and ends with the program.

Run it with `python -m torchwise.runtime.background.search FOLDER`. FOLDER/order.json holds the order.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torchwise.errors import BudgetError
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.rules import find_choices, iter_changes, merge_changes
from torchwise.records import Decision, Failure, Interval, Outcome, Study, codec
from torchwise.records.listener import Listener
from torchwise.records.verdict import compare_processes
from torchwise.runtime.background.aot_worker import AotCode, CheckResult, Preparation
from torchwise.runtime.background.protocol import Message, Order
from torchwise.store import open_storage
from torchwise.study import Caches, Request, run_study
from torchwise.study.apply_approvals import ApprovalPolicy, apply_approvals
from torchwise.study.history import History
from torchwise.trial import Assignment, Launcher, Limits, ProcessLauncher, ask_worker
from torchwise.trial.job import Attempt
from torchwise.trial.launcher import OnStage

MAX_PREPARED = 3
"""Maximum number of plans to prepare per tier, the most promising first, until one is verified and faster."""
BETTER = 1.02
"""Minimum speed of a new plan, relative to the current one, from which it is swapped in."""

SEARCH_SHARE = 2 / 3
"""The share of the remaining budget for a search. Its plan must then be compiled for the program, and verified."""

PRIORITY = "TORCHWISE_BACKGROUND_PRIORITY"
"""Environment variable: "idle" (the default) or "normal"."""

Tell = Callable[[Message], None]


def main() -> None:
    """Carry out the order in the command line's folder."""
    _stay_behind()
    folder = Path(sys.argv[1])
    order = codec.from_json((folder / "order.json").read_text(), Order)
    sys.path[:] = order.path
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # other output must not be taken for news

    def tell(news: Message) -> None:
        print(codec.to_json(news), file=lines, flush=True)

    try:
        search(order, folder, ProcessLauncher(), tell)
        tell(Message("done", "the search is over"))
    except Exception as error:  # after any error the program goes on unchanged, and reports it
        tell(Message("failed", f"{type(error).__name__}: {error}"))


def search(order: Order, folder: Path, launcher: Launcher, tell: Tell) -> None:
    """Search each tier, and promote verified plans that are faster than the current one, within the order's budget."""
    best: Interval | None = None
    launcher = budget = OrderBudget(order, launcher)
    for tier, effort in enumerate(order.efforts):
        is_last = effort == order.efforts[-1]
        if budget.left_s <= 0:
            tell(Message("left", f"the budget of {order.request.budget_s:.0f} s is spent"))
            return
        tell(Message("searching", f"effort {effort}"))
        request = replace(
            order.request,
            effort=effort,
            fresh=order.request.fresh and tier == 0,
            cold=order.request.cold and is_last,  # must not delay a first plan
            budget_s=budget.for_search(effort, is_last=is_last),
            begun=None,  # each search begins by itself
            workers=1,  # cores and memory are the program's
        )
        with open_storage(order.store) as storage, Caches(within=folder) as caches:
            try:
                study = run_study(request, storage, launcher, Listener(), caches=caches)
            except BudgetError as error:  # no failure: what answers goes on
                tell(Message("left", str(error)))
                return
            assert study.decision is not None
            decision, rules = (
                apply_approvals(study.decision, storage).decision,
                ApprovalPolicy.from_storage(study.decision, storage),
            )
        if decision.plan.is_eager:
            tell(Message("stays", decision.reason))
            continue
        study = replace(study, decision=decision)
        prepared = _prepare_plan(request, study, folder / f"{tier}.code", launcher, best, tell, rules)
        if prepared is None:
            continue
        decided = prepared.parse_decision()
        speedup = decided.speedup
        if speedup is not None and speedup.low < order.minimum_speedup and not decided.is_needed:
            text = f"{prepared.text}, and minimum_speedup is {order.minimum_speedup}"
            tell(Message("left", text, prepared.decision))
            continue
        tell(prepared)
        best = speedup


class OrderBudget:
    """A launcher whose workers end with the budget of an order, which counts from its start.

    Without a budget, only the limits of the efforts hold.
    """

    def __init__(self, order: Order, launcher: Launcher) -> None:
        self._seconds, self._launcher = order.request.budget_s, launcher
        self._end = math.inf if self._seconds is None else order.started + self._seconds

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return max(self._end - time.monotonic(), 0.0)

    def for_search(self, effort: str, *, is_last: bool) -> float | None:
        """Return the seconds for the search of one tier: the rest is for the code of its plan, and for later tiers."""
        if self._seconds is None:
            return None
        share = SEARCH_SHARE * self.left_s
        return share if is_last else min(share, EFFORTS[effort].search_s)

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
        """Run a job for at most the rest of the budget."""
        limits = replace(limits, end_s=min(limits.end_s, self.left_s))
        return self._launcher.run(job, limits, on_stage)


def adapt_to_aot(plan: Plan, *, for_any_model: bool = False) -> Plan:
    """Return the plan most similar to `plan` that can be compiled ahead of time.

    Each choice that cannot be is replaced by those that its declaration gives. So regional compilation becomes
    whole-model compilation, and Inductor's CUDA graphs become one around the call.

    Args:
        plan: it.
        for_any_model: replace choices, too, that can be compiled ahead for some models alone.
    """
    changed = [
        choice
        for choice in find_choices(plan)
        if choice.ahead_instead is not None and (choice.not_ahead or for_any_model)
    ]
    dropped = {choice.key for choice in changed}
    kept = [change for change in iter_changes(plan) if change not in dropped]
    return Plan(**merge_changes((*kept, *(new for choice in changed for new in choice.ahead_instead or ()))))


def _prepare_plan(
    request: Request,
    study: Study,
    file: Path,
    launcher: Launcher,
    best: Interval | None,
    tell: Tell,
    rules: ApprovalPolicy,
) -> Message | None:
    decision = study.decision
    assert decision is not None
    for plan in _candidates(study, decision, rules):
        found = _compile_and_verify(request, study, plan, file, launcher)
        if isinstance(found, str):
            tell(Message("left", f"plan {plan}: {found}"))
            continue
        made, checked = found
        attempt = checked.attempt
        assert attempt.measurement is not None
        speedup = attempt.measurement.speedup
        if best is not None and speedup.low < best.mid * BETTER:
            tell(Message("stays", f"plan {plan} is {speedup}× eager, which is no better than the current plan"))
            return None
        decided = _update_decision(decision, plan, attempt)
        text = f"plan {plan} is verified, {speedup}× eager's speed"
        code = (str(file), made.sha256, made.checks) if made else ("", "", {})
        return Message("promoted", text, decided.to_json(), *code, checked.extra_calls)
    return None


def _candidates(study: Study, decision: Decision, rules: ApprovalPolicy) -> list[Plan]:
    """Return the loadable forms of the decided plan, then of other verified and permitted plans, fastest first."""
    needs_speed = _needs_speed(study)
    faster = [t for t in study.trials if t.is_verified and t.speedup and (t.speedup.low > 1 or not needs_speed)]
    ranked = sorted(faster, key=lambda t: -t.speedup.mid if t.speedup else 0.0)
    plans = [decision.plan, *(t.plan for t in ranked if rules.find_refusal(t.plan) is None)]
    become = dict.fromkeys(adapt_to_aot(plan, for_any_model=again) for plan in plans for again in (False, True))
    return [plan for plan in become if rules.rejection(plan) is None][:MAX_PREPARED]


def _compile_and_verify(
    request: Request, study: Study, plan: Plan, file: Path, launcher: Launcher
) -> tuple[AotCode | None, CheckResult] | str:
    """Compile the plan in one worker, and verify and time it in another, or return the reason for its rejection."""
    job = replace(request.make_job("try"), plan=plan, traits=study.inspection.traits)
    limits = request.make_limits(request.trial_s)
    made: AotCode | None = None
    preparation = Preparation("check", job, "")
    if plan.backend == "eager" and plan.is_traced:
        return "its functions are rewritten on the first call, which must not happen in a program that serves"
    if plan.backend != "eager":
        code = ask_worker(launcher, Preparation("make", job, str(file)), AotCode, limits, _hear)
        if isinstance(code, Failure):
            return str(code)
        made, preparation = code, Preparation("check", job, str(file), code.sha256, code.checks)
    checked = ask_worker(launcher, preparation, CheckResult, limits, _hear)
    if isinstance(checked, Failure):
        return str(checked)
    attempt = checked.attempt
    if attempt.verdict.outcome is not Outcome.PASS or attempt.measurement is None:
        return f"not verified: {attempt.verdict.reason}"
    if attempt.measurement.speedup.low <= 1 and _needs_speed(study):
        return f"it is {attempt.measurement.speedup}× eager's speed here"
    if attempt.digest:
        again = ask_worker(launcher, preparation, CheckResult, limits, _hear)
        if isinstance(again, Failure):
            return f"in one more process: {again}"
        if (alike := compare_processes(attempt.digest, again.attempt.digest)).outcome is not Outcome.PASS:
            return f"not verified: {alike.name}: {alike.detail}"
    return made, checked


def _needs_speed(study: Study) -> bool:
    """Whether a plan must be faster than eager. One that has a property which eager lacks need not be."""
    return History(study.workload, study.inspection, study.trials).eager_lack is None


def _update_decision(decision: Decision, plan: Plan, attempt: Attempt) -> Decision:
    """Return the decision with the measurements of the loaded code."""
    assert attempt.measurement is not None
    measured = f"prepared in the background: {attempt.measurement.speedup}× eager's speed, as loaded"
    reason = decision.reason if plan == decision.plan else f"{decision.reason} In its place {plan}"
    return replace(
        decision,
        plan=plan,
        reason=f"{reason.rstrip('.')}; {measured}.",
        speedup=attempt.measurement.speedup,
        cold_s=attempt.costs.cold_s,
        warm_s=None,
        error=attempt.verdict.error,
    )


def _hear(stage: str) -> None: ...


def _stay_behind() -> None:
    """Run at idle priority, and end with the program.

    On a machine that is always busy, the search would never end. PRIORITY=normal gives it a share.
    """
    threading.Thread(target=_end_with_the_program, daemon=True).start()
    if os.environ.get(PRIORITY) == "normal":
        return
    with contextlib.suppress(OSError, AttributeError):  # not possible on every system or in every container
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _end_with_the_program() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
