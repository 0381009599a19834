"""The loop of a search: ask, claim, try and store, until nothing more is worth trying, and then decide."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from torchwise.environment import Environment
from torchwise.errors import BaselineError, StorageError, UnsupportedError
from torchwise.plan import EAGER, Plan, Trait
from torchwise.plan.effort import EFFORTS
from torchwise.plan.known_names import find_unusable_part
from torchwise.plan.space import PlanSpace
from torchwise.records import Failure, FailureKind, Inspection, Study, StudyState, Trial, TrialState, WorkerStage
from torchwise.records.listener import Listener
from torchwise.records.measurement import Measurement
from torchwise.records.trial import with_repeat
from torchwise.store import LeaseOwner, Storage
from torchwise.study.caches import Caches, keep_heartbeat
from torchwise.study.compile_limit import CompileLimit, find_compile_limit, read_compile_ratios
from torchwise.study.crew import Crew
from torchwise.study.decision import decide
from torchwise.study.gain_model import GainModel, read_past
from torchwise.study.hints import list_hints
from torchwise.study.history import History, has_ended_early, keep_known, lacks_memory
from torchwise.study.lanes import Lane
from torchwise.study.pairwise import cheapest, front, next_cold, next_duel, next_repeat, prune_below
from torchwise.study.request import Request
from torchwise.study.samplers import ListedSampler, Proposal, Sampler, StagedSampler
from torchwise.trial import Budget, Job, Launcher, hold_duel, measure_again, try_plan
from torchwise.trial.job import Task

BUSY = 3.0
"""Ratio of eager's time beside a stored plan to its time now, from which the machine was too busy to time that plan."""
SUCCESSOR_FACTOR = 1.25
"""Seconds that are kept for another search, as a multiple of those that it needs by this one's: it has more sizes."""
CALLS_PER_TRIAL = 100
"""Calls of eager that a trial may take on top of its limit: a slow model is verified and timed as well."""


@dataclass
class SearchLoop:
    """One search of a study in the store, in one or several lanes."""

    request: Request
    storage: Storage
    launcher: Launcher
    listener: Listener
    study_id: int
    here: Environment
    inspection: Inspection
    inspection_s: float
    budget: Budget
    caches: Caches
    is_local: bool
    lanes: tuple[Lane, ...] = (Lane(),)

    def __post_init__(self) -> None:
        self._owner = LeaseOwner.current()
        self._crew = Crew(self.lanes, self.budget.spent.stage)
        self._begun: dict[Plan, float] = {}
        self._leader = EAGER
        self._tried: set[Plan] = set()
        self._cold = self.request.cold
        self._why_not_cold = ""
        self._compile_ratios: dict[str, float] | None = None
        self._sampler = self._choose_sampler()

    def run(self) -> Study:
        """Search, decide, and return the study. If it is interrupted, finished trials are kept, and none is RUNNING."""
        try:
            with keep_heartbeat(self.storage, self._owner):
                self._crew.work(self._search)
                told = self._resolve_ties()
            if not self._tried and not told and self._history().trials:
                self.listener.note("decided from what is stored; --fresh, or fresh=True, measures again")
        except BaseException:  # raised again: an interruption, above all, must leave the study as it stands
            with suppress(StorageError):  # a lost store still holds all finished trials
                self._conclude(StudyState.INTERRUPTED)
            raise
        return self._conclude(StudyState.DECIDED)

    def _search(self, lane: Lane) -> None:
        """Try one plan after another in a lane, until nothing more is worth trying."""
        while self._goes_on():
            self.storage.release_dead_claims(self.study_id)
            proposal = self._sampler.ask(self._history())
            if proposal is not None:
                self._try(proposal, lane)
            elif self._others_at_work():
                self._crew.wait()
            else:
                break

    def _goes_on(self) -> bool:
        self._crew.wait_until_alone()
        return not self.budget.is_spent and not self._crew.stop.is_set()

    def _history(self, *, ended: bool = False) -> History:
        """Read the facts so far, other processes' trials included, for the calls requested now.

        A trial is left out if it was ended under an earlier request, and would not be under this one. It is also left
        out if it was timed on a far too busy machine, according to this search's own time of eager.
        """
        stored = self._read_history()
        return replace(stored, trials=tuple(t for t in stored.trials if not self._may_go_on(t, stored, ended)))

    def _read_history(self) -> History:
        study = self.storage.get_study(self.study_id)
        counted = tuple(t for t in study.trials if self._counts(t.plan))
        return History(self.request.workload, study.inspection, counted, self.budget.left_s)

    def _may_go_on(self, trial: Trial, stored: History, ended: bool = False) -> bool:
        """Return whether to try a plan again, which is never so for a trial of this very search.

        If the search has `ended`, a trial counts although its warm start is missing.
        """
        if trial.plan in self._tried:
            return False
        is_compiling = trial.failure is not None and WorkerStage(trial.failure.stage).is_compiling
        timeout_s = self._limit_compile(trial.plan, stored).seconds if is_compiling else math.inf
        limit_s = min(self._limit_s(stored), timeout_s)
        restarts = 1 if ended else self.request.workload.restarts
        return self._had_interference(trial) or has_ended_early(trial, self._bound(stored), limit_s, restarts)

    def _had_interference(self, trial: Trial) -> bool:
        now_s = self.inspection.measurement.baseline_time.mid
        return trial.measurement is not None and trial.measurement.times_as_long((None, now_s)) > BUSY

    def _bound(self, history: History) -> float | None:
        """Return the speed-up below which a trial is stopped.

        A plan that the user named is measured to its end.
        """
        return prune_below(history) if self.request.plans is None else None

    def _limit_s(self, history: History, is_last: bool = False) -> float:
        own_s = self.request.trial_s + CALLS_PER_TRIAL * history.economics.baseline_s
        return max(own_s, self.budget.left_s) if is_last and self.request.limits_all else own_s

    def _limit_compile(self, plan: Plan, history: History) -> CompileLimit:
        """Return the limit of a plan's compile: that of the user, or one far beyond its predicted time."""
        if self.request.compile_timeout_s is not None:
            return CompileLimit(self.request.compile_timeout_s)
        return find_compile_limit(plan, history, self.request.search_s, self._read_compile_ratios)

    def _read_compile_ratios(self) -> dict[str, float]:
        if self._compile_ratios is None:
            self._compile_ratios = read_compile_ratios(self.storage, self.study_id, self.here)
        return self._compile_ratios

    def _counts(self, plan: Plan) -> bool:
        """Return whether a plan may be decided for: its code is known, and the user's list, if any, has it."""
        return find_unusable_part(plan) is None and (self.request.plans is None or plan in self.request.plans)

    def _others_at_work(self) -> bool:
        return any(trial.state is TrialState.RUNNING for trial in self.storage.get_study(self.study_id).trials)

    def _try(self, proposal: Proposal, lane: Lane) -> None:
        stored = self._read_history()  # read again, as another process may have finished a trial just now
        again = next((t for t in stored.trials if t.plan == proposal.plan and self._may_go_on(t, stored)), None)
        trial = self.storage.claim_trial(self.study_id, proposal.plan, proposal.reason, self._owner, again=again)
        if trial is None:  # another process was quicker; the next history holds it
            return
        try:
            was_alone, found = self._crew.is_alone, self._launch(trial, proposal.limit_s, lane)
            if not was_alone and lacks_memory(found):  # which others of this search may have had
                self.listener.note(f"trial {trial.number} ran out of memory beside others: from now on each runs alone")
                self._crew.work_alone()
                found = self._launch(trial, proposal.limit_s, lane)
            finished = keep_known(found, again)
        except BaseException:  # raised again: with any exception, this trial did not happen
            with suppress(StorageError):  # the next process takes back the claims of the dead
                self.storage.release_trial(self.study_id, trial.number)
            raise
        self.storage.finish_trial(self.study_id, finished)
        self.caches.keep([*front(self._history(), EFFORTS[self.request.effort].duels), *self._begun])
        self.listener.finish_trial(finished)
        self._report_leader()

    def _launch(self, trial: Trial, limit_s: float, lane: Lane) -> Trial:
        self._tried.add(trial.plan)
        history = self._history()
        left = dict.fromkeys([trial.plan, *self._sampler.list_worthwhile(history)])
        self.listener.expect_trials(len(left), min(self._predict_s(left, history), history.left_s))
        self.listener.start_trial(trial.number, trial.plan, trial.reason)
        job = replace(
            self._make_job("try", lane),
            traits=self._traits(history),
            prune_below=self._bound(history),
            baseline_s=history.economics.baseline_s,
            cache_dir=self.caches.new(trial.plan),
        )
        limits = self.request.make_limits(min(self._limit_s(history, math.isinf(limit_s)), limit_s))
        compiling = self._limit_compile(trial.plan, history)
        limits = replace(limits, compile_s=compiling.seconds, compile_note=compiling.note)
        if not self._crew.is_alone:  # of the memory that is free, each lane has its share
            limits = replace(limits, memory_bytes=limits.memory_bytes // len(self.lanes))
        if len(self.lanes) > 1:
            limits = replace(limits, stop=self._crew.stop)
        self._begun[trial.plan] = time.monotonic()
        try:
            with self._crew.running(lane) as on_stage:
                return try_plan(self.launcher, job, trial, limits, on_stage, starts_again=self._starts_again)
        finally:
            del self._begun[trial.plan]

    def _make_job(self, task: Task, lane: Lane) -> Job:
        return replace(self.request.make_job(task), cores=lane.cores)

    def _predict_s(self, left: Iterable[Plan], history: History) -> float:
        """Predict the seconds in which these plans are tried, and the trials that run come to their ends.

        Lanes share the compiling. For the rest of a trial, one after the other has the device.
        """
        now, shares = time.monotonic(), dict.fromkeys(left, 1.0)
        for plan, begun in list(self._begun.items()):  # a lane that an error ends leaves it without the turn
            shares[plan] = max(1 - (now - begun) / max(history.predict_trial_s(plan), 1e-9), 0.0)
        whole = {plan: share * history.predict_trial_s(plan) for plan, share in shares.items()}
        compiling = sum(share * history.predict_cold_s(plan) for plan, share in shares.items())
        lanes = 1 if self._crew.is_alone else len(self.lanes)
        return max(compiling / lanes + sum(whole.values()) - compiling, *whole.values())

    def _starts_again(self, trial: Trial) -> bool:
        """Return whether a promising plan is started a second time at once: it leads, or would be chosen now.

        Any other is if it is chosen in the end. What a worker on another machine has compiled is gone by then.
        """
        if self.request.starts_all_again or not self.is_local:
            return True
        history = self._history().with_trial(trial)
        chosen = cheapest(history)
        return trial.plan == history.incumbent() or (chosen is not None and trial.plan == chosen.plan)

    def _resolve_ties(self) -> int:
        """Time plans again if the decision depends on differences that a trial may not tell, and return how many times.

        The leading plan, and the one chosen so far, are timed beside eager in more processes, and plans beside each
        other. That goes on for as long as it is worth its time, and the effort allows. On request, the chosen plan is
        timed with cold caches, too.
        """
        care, told = EFFORTS[self.request.effort], 0
        while not self.budget.is_spent:
            history = self._history()
            if trial := next_repeat(history, care.processes, care.half_width, 1 + care.duels):
                what, step = f"{trial.plan} could not be timed again", partial(self._measure_again, trial)
            elif pair := next_duel(history, care.duels, self.caches):
                what = f"{pair[0].plan} could not be timed beside {pair[1].plan}"
                step = partial(self._hold_duel, *pair)
            elif self._cold and (trial := next_cold(history, care.processes, care.half_width)):
                what, step = f"{trial.plan} could not be timed with cold caches", partial(self._measure_again, trial)
            else:
                break
            try:
                if not step(history):
                    break  # a budget that is not this search's own has ended, as that of a benchmark does
            except (BaselineError, UnsupportedError) as error:  # such as no device left: the trials stand
                self.listener.note(f"{what}: {error}")
                break
            told += 1
        return told

    def _measure_again(self, trial: Trial, history: History) -> bool:
        """Time a plan beside eager in one more process, and return whether the budget left time for that."""
        self.listener.start_comparison(trial.plan, EAGER)
        job = replace(self._make_job("warm", self.lanes[0]), plan=trial.plan, traits=self._traits(history))
        job = replace(job, baseline_s=history.economics.baseline_s, cold=self._cold)
        caches, limit_s = self.caches.list_folders(trial.plan), max(self._limit_s(history), 2 * trial.seconds)
        limits = self.request.make_limits(limit_s)  # without caches it compiles once more, perhaps in a later search
        restart = measure_again(self.launcher, job, limits, self.budget.spent.stage, caches, trial.digest)
        if _is_out_of_budget(restart):
            return False  # the trial stays as it is
        if isinstance(restart, Failure) and restart.stage == WorkerStage.MEASURE_COLD:
            self._cold = False  # what ended the worker is no fault of the plan
            self._why_not_cold = f"cold processor caches: {restart}"
            return True
        found: Measurement | Failure = restart if isinstance(restart, Failure) else restart.measurement
        warm_s = restart.warm_s if not isinstance(restart, Failure) and caches else None
        if self._cold and isinstance(found, Measurement) and not found.cold_candidate_s:
            self._cold = False  # nor would another process
            self._why_not_cold = found.not_cold
        kept = self.storage.keep_repeat(self.study_id, trial.plan, found, warm_s)
        self.listener.finish_repeat(kept or with_repeat(trial, found, warm_s))
        self._report_leader()
        return True

    def _hold_duel(self, challenger: Trial, leader: Trial, history: History) -> bool:
        """Time two plans beside each other, and return whether the budget left time for that."""
        self.listener.start_comparison(challenger.plan, leader.plan)
        job = self._make_job("duel", self.lanes[0])
        usual = _seconds_per_call(challenger), _seconds_per_call(leader)
        job = replace(job, plan=challenger.plan, traits=self._traits(history), expected_s=usual)
        limits = self.request.make_limits(2 * self._limit_s(history), candidates=2)
        caches = self.caches.list_folders(challenger.plan, leader.plan)
        duel = hold_duel(self.launcher, job, leader.plan, limits, self.budget.spent.stage, caches)
        if _is_out_of_budget(duel.failure):
            return False  # it stays open for another search
        kept = self.storage.keep_duel(self.study_id, challenger.plan, duel)
        self.listener.finish_comparison(replace(challenger, duel=kept))
        return True

    def _traits(self, history: History) -> frozenset[Trait]:
        """Return the workload's traits, with facts about its noise from earlier trials."""
        verdicts = (trial.verdict for trial in history.trials if trial.verdict)
        if any(check.is_noise_unreproducible for verdict in verdicts for check in verdict.checks):
            return self.inspection.traits | {Trait.NOISE_NOT_REPRODUCIBLE}
        return self.inspection.traits

    def _report_leader(self) -> None:
        history = self._history()
        leader = history.incumbent()
        if leader != self._leader:
            self._leader = leader
            trial = history.find_trial(leader)
            self.listener.change_leader(leader, trial.speedup if trial else None)
        self._keep_time(history, leader)

    def _keep_time(self, history: History, leader: Plan) -> None:
        """Keep the seconds that the search for the leader's successor needs: to profile the model, and for one trial.

        They are those of this search: of the leader's whole trial, as those of losers end early, but for its mode of
        compiling, and of a profile, which a search that goes on has from before. Without a leader, or a model that
        takes other sizes, there is nothing to succeed, and without a user's budget the other search has seconds of its
        own.
        """
        successor = None if self.inspection.takes_other_sizes is False else self.request.successor
        if successor is None or self.request.budget_s is None or leader.is_eager:
            self.budget.kept_s = 0.0
            return
        profile_s = max(self.inspection_s, history.min_noncompile_s)
        trial_s = history.predict_trial_s(successor(leader), history.find_trial(leader))
        self.budget.kept_s = min(SUCCESSOR_FACTOR * (profile_s + trial_s), self.budget.seconds)

    def _conclude(self, state: StudyState) -> Study:
        history = self._history(ended=True)
        known = any(trial.state.is_finished for trial in history.trials)
        decision = decide(history, self.here) if known or state is StudyState.DECIDED else None
        if self.request.plans is None:
            excluded = self._sampler.list_excluded(self._read_history())  # what may be repeated was tried all the same
        else:  # named plans say nothing about the choices that a search left out
            excluded = list(self.storage.get_study(self.study_id).excluded)
        if state is StudyState.DECIDED and self.budget.is_spent:
            excluded.append(f"whatever else: {self.request.name_budget(self.budget)}")
        if self.request.cold and decision is not None:
            excluded += self._explain_untimed_cold(decision.plan, history)
        self.storage.store_outcome(
            self.study_id,
            state=state,
            decision=decision,
            excluded=list(dict.fromkeys(excluded)),
            seconds=self.budget.spent.seconds,
            asked=(self.request.workload, self.request.effort),
        )
        return self.storage.get_study(self.study_id, self.request.workload.target)

    def _explain_untimed_cold(self, plan: Plan, history: History) -> list[str]:
        """Say why the chosen plan was not timed with cold caches despite the request, or return nothing if it was."""
        if plan.is_eager:
            return ["cold processor caches: eager stays, so there is no plan to time with them"]
        trial = history.find_trial(plan)
        if trial and trial.cold_speedups:
            return []
        why = "the budget is spent" if self.budget.is_spent else "the search ended before the plan was timed with them"
        return [self._why_not_cold or f"cold processor caches: {why}"]

    def _choose_sampler(self) -> Sampler:
        request, inspection = self.request, self.inspection
        if request.plans is not None:
            return ListedSampler(request.plans)
        space = PlanSpace(
            request.workload.device, request.workload.mode, inspection.traits, request.allow, request.effort
        )
        hints = list_hints(request, inspection, self.storage, self.here, self.listener)
        return StagedSampler(space, hints, GainModel(read_past(self.storage, self.study_id)))


def _is_out_of_budget(found: object) -> bool:
    return isinstance(found, Failure) and found.kind is FailureKind.OUT_OF_BUDGET


def _seconds_per_call(trial: Trial) -> float | None:
    return trial.measurement.candidate_time.mid if trial.measurement else None
