"""Which plan to try next: asking never executes anything.

`StagedSampler` tries cheap candidates first, and an expensive one only when its best possible gain can pay for it. Its
search is a descent from the leading plan, and from the quickest compiled one, whose launch gaps may still be removed.
Every plan one choice away has a bound: the largest possible gain of that choice, given the profile of the time. A plan
is excluded, with the figures, if it cannot pay for its compilation over the remaining calls. If the user stated these
calls, it must pay for its own trial as well. Of the rest, past studies expect one to save most for the time of its
trial (`gain_model`), and it is tried next. Every result moves the leader and the bounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torchwise.plan import EAGER, Choice, Numerics, Plan, PlanSpace, Trait
from torchwise.plan.choice import ANY, load_choices
from torchwise.plan.effort import EFFORTS, MOST, rank_effort
from torchwise.plan.rules import iter_changes
from torchwise.plan.space import choices_of, complexity_of
from torchwise.records import Failure, Trial
from torchwise.records import format as show
from torchwise.study.gain_model import GainModel, WeightedStudies
from torchwise.study.history import BESIDE_S, History, code_of, judged_by_user, takes_a_trial
from torchwise.study.option import Option
from torchwise.study.option_rules import (
    LOST,
    fails_like_others,
    has_fewer_bits,
    has_fewer_bits_with_backend,
    is_for_other_shapes,
    is_trailing,
    iter_own_precision,
    was_hidden,
)

PATIENCE = 2.0
"""Multiple of its predicted time that a trial may always take, with any rest of the budget."""
WON = 1.05
"""Speed relative to its base from which on a choice counts as having won.

With few trials, only such a choice is tried on other plans.
"""
MAX_REFUSAL = 160
"""Maximum characters of a refusal that is told once for several plans."""
QUICK = 0.1
"""Share of a trial below which its compile does not count in the order of trials."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan worth trying, and why.

    Attributes:
        limit_s: seconds after which its trial is ended, so that others can be tried as well, or infinite if nothing
            else waits.
    """

    plan: Plan
    reason: str
    limit_s: float = math.inf


class Sampler(Protocol):
    """Chooses the next plan from the history.

    A sampler keeps no state: the same history, and the same past studies, give the same answer. So an interrupted study
    continues from the same point, and several processes may share one. It proposes only legal plans that are open or
    that the user named, never eager, and never a plan that the history holds. It ends by returning None, and stays with
    that.
    `torchwise.testing.sampler` has this contract as tests.
    """

    def ask(self, history: History) -> Proposal | None:
        """Return the plan to try next, or None when nothing more is worth its cost."""
        ...

    def list_worthwhile(self, history: History) -> list[Plan]:
        """List the plans that are worth trying as things stand, for an estimate of how long the search goes on."""
        ...

    def list_excluded(self, history: History) -> list[str]:
        """List the plans not worth trying given the history, each as "name: reason"."""
        ...


class ListedSampler:
    """Proposes each plan of a list once. See `Sampler`."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = tuple(plans)

    def ask(self, history: History) -> Proposal | None:
        """Return the first plan of the list that was not tried."""
        left = self.list_worthwhile(history)
        return Proposal(left[0], "asked for") if left else None

    def list_worthwhile(self, history: History) -> list[Plan]:
        """List the plans of the list that were not tried."""
        return [plan for plan in dict.fromkeys(self._plans) if not plan.is_eager and history.find_trial(plan) is None]

    def list_excluded(self, history: History) -> list[str]:  # noqa: ARG002 - the shape of a sampler
        """Return nothing: the user chose."""
        return []


class StagedSampler:
    """The default sampler. See `Sampler`.

    Args:
        hints: plans that were decided for before, on another machine or for an earlier version of the model. They are
            tried first, and never trusted.
        gains: gives the order from past studies. Where it has none, plans with quick compiles come first.
    """

    def __init__(self, space: PlanSpace, hints: Sequence[Proposal] = (), gains: GainModel | None = None) -> None:
        self._space = space
        self._hints = tuple(hints)
        self._gains = gains or GainModel()

    def ask(self, history: History) -> Proposal | None:
        """Return the most promising affordable plan that was not tried, or None."""
        if self._is_at_its_end(history):
            return None
        for hint in self._hints:
            known = history.find_trial(hint.plan) or history.find_refusal(hint.plan)
            if known is None and self._is_affordable(hint.plan, history):
                return hint
        worth = [option for option in self._options(history) if option.problem(history) is None]
        if not worth:
            return None
        best = min(worth, key=self._order(history))
        reason, limit_s = f"{best.choice.summary}; on {best.base}", _limit_s(best, worth, history)
        if best.choice.target_cost == "compile":
            return Proposal(best.plan, reason, limit_s)
        bound = best.gain_s / history.seconds_of(history.incumbent())
        return Proposal(best.plan, f"{reason} it could save up to {min(bound, 1):.0%}", limit_s)

    def _order(self, history: History) -> Callable[[Option], tuple[Any, ...]]:
        """Return the key by which the options are sorted, the next one first.

        Plans that can end in time come first, and then those that past studies expect to save most for each second of
        their trials. Without such studies, plans that build on the leader come first, as variants of plans that trail
        would use up the trials. While eager leads, the quickest compiled plan counts as a leader, too. A choice that
        such a plan lacks adds to its gains, and so comes before another value of one that it has. Quick compiles come
        first, and of equal ones choices of less effort, which pay for more models. A captured leader that may be one
        kernel, without its capture, counts as built on it.

        Before all comes a value whose quicker kernels could not show, because the GPU waited for the host: later trials
        build on it. So they do on fewer bits in the model's own precision, if those are near the leader in another one.
        Numbers of fewer bits in eager wait until such numbers were tried with a backend. To round them is work of its
        own, which a compiler joins to the work around it, and past studies do not tell that a backend, which may gain
        little by itself, opens that.
        """
        leader, foundation = history.incumbent(), history.foundation()
        waits = Trait.CONTENDED_CORES in history.traits
        first = (leader, foundation, history.fastest_compiled()) if leader == EAGER else (leader,)
        backend = load_choices().get(("backend", leader.backend))
        uncaptured = replace(leader, capture="none") if backend is not None and backend.may_be_one_kernel else None
        # Past studies tell of time alone.
        is_about_time = history.workload.objective != "memory" and history.eager_fits_memory and not history.eager_lack
        studies = self._gains.weigh_past(history) if is_about_time else WeightedStudies()

        waits_for_backend = is_about_time and not any(map(has_fewer_bits_with_backend, history.trials))

        def is_late(o: Option) -> bool:  # code for a number of threads that is not the best for eager
            return waits and o.overhead_s > 0 and o.plan.threads != foundation.threads

        return lambda o: (
            o.trial_s > history.left_s,
            not was_hidden(o, history),
            not (is_about_time and o.is_own_precision),
            waits_for_backend and o.plan.backend == EAGER.backend and has_fewer_bits(o.plan),
            (is_late(o), -o.expect_saving_s(history, studies) / max(o.trial_s, BESIDE_S)) if studies else (),
            o.base not in first and o.plan != uncaptured,
            is_late(o),
            o.is_replacement,
            # A compile that is short beside the rest of its trial is as good as none.
            o.overhead_s if o.overhead_s > QUICK * o.trial_s else 0.0,
            rank_effort(o.choice.least_effort(history.inspection.traits, history.workload.device)),
            -o.gain_s,
            complexity_of(o.plan),
            o.plan.id,
        )

    def list_worthwhile(self, history: History) -> list[Plan]:
        """List the options that could pay, and at most as many as the effort still allows."""
        worth = [option.plan for option in self._options(history) if option.problem(history) is None]
        return worth[: self._count_left(history)]

    def _is_at_its_end(self, history: History) -> bool:
        return self._count_left(history) == 0

    def _count_left(self, history: History) -> int:
        counted = [trial for trial in history.trials if takes_a_trial(trial.plan)]
        return max(EFFORTS[self._space.effort].max_trials - len(counted), 0)

    def _is_affordable(self, plan: Plan, history: History) -> bool:
        """Return whether a plan is open here and could pay if it took no time at all."""
        # A trial may have shown that trait.
        space = replace(self._space, effort=MOST, traits=self._space.traits | {Trait.RESTRIDED})
        closed = [choice for choice in choices_of(plan) if space.excludes(choice)]
        return not plan.is_eager and not closed and history.predict_overhead_s(plan) < history.economics.baseline_cost

    def list_excluded(self, history: History) -> list[str]:
        """List the untried neighbours of the leader that cannot pay, and those that need other effort or numerics."""
        found = {str(o.plan): o.problem(history) for o in self._options(history)}
        if Trait.GROWS in history.traits:
            found["inductor for static shapes"] = "each call changes the shape of its state, and would compile again"
        if Trait.SIZES_VARY in history.traits:
            found["plans for static shapes"] = "they would leave the sizes to come to the plain model"
        if Trait.RESTRIDED in history.traits:
            found["inductor without eager_strides"] = "compiled outputs have another memory layout than eager's"
        refused = [(trial, trial.failure) for trial in history.trials if trial.failure and trial.failure.about]
        found.update({_name_parts(why.about): _explain_refusal(trial, why) for trial, why in refused})
        refused_changes = [judged_by_user(trial.plan) for trial in history.trials if trial.changes_too_much]
        found.update(
            {" + ".join(sorted(names)): "a trial showed that it changes too much" for names in refused_changes}
        )
        if self._is_at_its_end(history):
            limit = f"effort {self._space.effort} ends after {EFFORTS[self._space.effort].max_trials} trials"
            found = {plan: problem or limit for plan, problem in found.items()}
        return [f"{plan}: {problem}" for plan, problem in sorted(found.items()) if problem] + self._list_unavailable(
            history
        )

    def _list_unavailable(self, history: History) -> list[str]:
        """List the choices that more effort or other numerics would open, and those that the workload bars.

        Choices that a search with more of them has tried already are left out.
        """
        traits = self._space.traits | {Trait.TOLERANT}  # which the user can give every model
        widest = replace(self._space, traits=traits, allow=Numerics.SUBSTITUTED, effort=MOST)
        tried = {part for trial in history.trials for part in iter_changes(trial.plan)}
        untried = [choice for choice in load_choices().values() if choice.value != ANY and choice.key not in tried]
        choices = [choice for choice in untried if widest.excludes(choice) in (None, widest.bars(choice))]
        reasons = {_name(choice): widest.bars(choice) or self._space.excludes(choice) for choice in choices}
        return [f"{name}: {reason}" for name, reason in reasons.items() if reason]

    def _options(self, history: History) -> Iterator[Option]:
        leader = history.incumbent()
        bases = dict.fromkeys([leader, history.foundation(), *history.list_fastest_compiled(), EAGER])
        space = replace(self._space, traits=self._space.traits | history.traits)
        seen: set[Plan] = set()
        found = [(base, *one) for base in bases for one in space.neighbours(base)]
        own = [*iter_own_precision(history)]
        for base, neighbour, choice in (*own, *found):
            plan = history.refine(neighbour)
            if plan in seen or history.find_trial(plan) is not None or self._has_lost(history, choice):
                continue
            if fails_like_others(plan, space) or is_for_other_shapes(plan, space):
                continue
            if history.find_refusal(plan):
                continue
            if plan.threads is not None and plan.threads == history.eager_threads:  # as it is without
                continue
            if is_trailing(plan, history):
                continue
            seen.add(plan)
            best_s = history.seconds_of(base) - self._bound_s(history, base, choice)
            gain_s = history.seconds_of(leader) - best_s
            overhead_s = history.predict_overhead_s(plan)
            is_own = (base, neighbour, choice) in own
            yield Option(plan, base, choice, gain_s, overhead_s, history.predict_trial_s(plan), is_own)

    @staticmethod
    def _bound_s(history: History, base: Plan, choice: Choice) -> float:
        """Return the seconds per call that a choice could save on `base` at the very most."""
        total = history.seconds_of(base)
        eager_s = history.economics.baseline_s
        if choice.target_cost in ("compile", "memory"):
            return 0.0
        if choice.target_cost == "launch":
            part = history.launch_gap_s(base)
        elif choice.target_cost in ("gemm", "conv"):
            # Only eager's time in other operators certainly stays the same here: a compiler may have made the rest
            # slower than in eager, and that could be won back.
            part = total - (1 - history.inspection.shares.get(choice.target_cost, 1.0)) * eager_s
            part = max(part, history.inspection.shares.get(choice.target_cost, 1.0) * eager_s)
        elif choice.target_cost == "attention":  # its kernels alone are others, and not the gaps between them
            shares = history.inspection.shares
            part = shares.get("attention", 1.0) * (1 - shares.get("launch", 0.0)) * eager_s
        else:
            part = total
        return (1 - choice.min_remaining_fraction) * min(part, total)

    def _has_lost(self, history: History, choice: Choice) -> bool:
        """Return whether a choice whose effect carries over already lost on another plan."""
        if not choice.carries_over:
            return False
        for trial in history.iter_timed():
            if getattr(trial.plan, choice.field) != choice.value:
                continue
            without = _drop_choice(trial.plan, choice)
            if without == EAGER or history.find_trial(without) is not None:
                bar = WON if self._space.effort == "quick" else LOST
                return history.seconds_of(without) / history.seconds_of(trial.plan) < bar
        return False


def _limit_s(chosen: Option, worth: Sequence[Option], history: History) -> float:
    """Return the seconds that a trial may take so that the quickest other code can be tried in the time after it.

    A trial of up to twice its predicted time is not ended yet.
    """
    others = [o.trial_s for o in worth if o.overhead_s > 0 and code_of(o.plan) != code_of(chosen.plan)]
    if not others:
        return math.inf
    return max(history.left_s - min(others), PATIENCE * chosen.trial_s)


def _name(choice: Choice) -> str:
    return _name_part(*choice.key)


def _name_part(field: str, value: Any) -> str:
    if field in ("capture", "threads"):  # whose values say nothing by themselves
        return f"{field} {value}"
    return str(value[0] if field == "options" else value)


def _name_parts(parts: Sequence[tuple[str, Any]]) -> str:
    """Name the parts of a plan for which it was refused, without those that every plain plan has."""
    told = [(field, value) for field, value in parts if value != getattr(EAGER, field, None)]
    split = [(field, each) for field, value in told for each in (value if _is_several(field, value) else [value])]
    return " + ".join(itertools.starmap(_name_part, split)) or "eager"


def _is_several(field: str, value: Any) -> bool:
    return field == "transforms" and isinstance(value, tuple)


def _explain_refusal(trial: Trial, failure: Failure) -> str:
    where = "in no plan" if len(failure.about) == 1 else "not tried again with other settings"
    return f"{where}, as {trial.plan} showed: {show.truncate(failure.message, MAX_REFUSAL)}"


def _drop_choice(plan: Plan, choice: Choice) -> Plan:
    return replace(plan, **{choice.field: getattr(EAGER, choice.field)})
