"""The plan of least cost, and the further timings that tell plans apart when their trials cannot.

Each trial has a process of its own, and compares its plan with eager alone. So the ratio of two trials includes the
differences between two processes, and between eager's times in them. Two plans timed in alternation in one process
share all of that, and their ratio says which is the faster. That is the idea of paired designs, as in
`measure.paired_timing`.

A duel costs time as well. It is held if the better choice that it may lead to is expected to save more than that. This
is the expected value of perfect information about the difference of two normal costs (Raiffa & Schlaifer, Applied
Statistical Decision Theory, 1961, section 5.3).

A plan that leads by its trial may owe that to its process. So the likeliest plan is timed beside eager in more of them.
That ends when its interval is narrow, or so far from eager's that no further process could change the choice. If all
its allowed processes have not told, the next likeliest has its turn. A plan that compiles and is chosen has two at
least: one that works in one process alone would fail after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Container
from math import hypot
from statistics import NormalDist

from torchwise.plan import Plan
from torchwise.plan.space import complexity_of
from torchwise.records import Interval, Trial
from torchwise.records.processes import PLAIN_LATER, PROCESS_SPREAD, is_plain
from torchwise.records.trial import relative_speeds
from torchwise.study.history import TIE, WARM_SHARE, History

LEAST = 2
"""Processes that the chosen plan is timed in at least, if it compiles."""
MARGIN = 0.97
"""Share of the leader's speed from which a candidate is measured to its end: ties go to the simpler plan."""
_UNIT = NormalDist()
_OF_95 = _UNIT.inv_cdf(0.975)


def cheapest(history: History) -> Trial | None:
    """Return the simplest of the plans that are tied for the least expected cost, or None if none certainly pays."""
    costs = _costs(history)
    plan = _simplest_of_the_least(costs) if costs else None
    return history.find_trial(plan) if plan else None


def next_duel(history: History, limit: int, cached: Container[Plan] = ()) -> tuple[Trial, Trial] | None:
    """Return the best plan to time beside the cheapest plan, and that plan, or None if no duel is worth it.

    A plan challenges once: its outcome stays, even a failure.

    Args:
        limit: duels, held or failed, among the plans that duels lead to from the cheapest.
        cached: plans that start from warm caches. All others compile again.
    """
    leader = cheapest(history)
    if leader is None or history.workload.objective == "memory":
        return None
    met = {leader.plan, *relative_speeds(history.trials, leader.plan)}
    held = sum(t.duel is not None and (t.plan in met or t.duel.rival in met) for t in history.trials)
    others = [t for t in history.list_paying() if t.plan not in met and t.duel is None]
    if held >= limit or not others:
        return None
    costs = _costs(history)
    worth = {t.plan: _gain(t, leader, costs, history) - _predict_duel_s(t, leader, history, cached) for t in others}
    challenger = max(others, key=lambda t: worth[t.plan])
    return (challenger, leader) if worth[challenger.plan] > 0 else None


def front(history: History, count: int) -> list[Plan]:
    """List the cheapest plan so far, and the `count` that come next by their trials."""
    ranked = history.list_promising()
    leader = cheapest(history) or next(iter(ranked), None)
    return [leader.plan, *[trial.plan for trial in ranked if trial is not leader][:count]] if leader else []


def _costs(history: History) -> dict[Plan, Interval]:
    """Return the expected total seconds of each plan that pays.

    Plans that duels connect are on the scale of one of them, the best by its trial. Each has the interval of its duels
    with the cheapest of them: a plan that those could not tell apart counts as equally fast.
    """
    economics, paying = history.economics, {t.plan: t for t in history.list_paying()}
    costs = {plan: economics.cost(trial) for plan, trial in paying.items()}
    for together in _group_by_duels(history):
        overhead = {plan: economics.overhead(paying[plan]) for plan in together}
        scale = _simplest_of_the_least({plan: economics.cost(paying[plan]) for plan in together})
        times = _relative_times(scale, history)
        calling = economics.calls * economics.seconds_per_call(paying[scale]).mid  # seconds for all calls
        least = min(together, key=lambda plan: overhead[plan] + calling * times[plan].mid)
        calling *= times[least].mid
        beside = _relative_times(least, history)
        for plan in together:
            ratio = beside[plan]
            mid = 1.0 if ratio.low <= 1 <= ratio.high else ratio.mid
            costs[plan] = Interval(*(overhead[plan] + calling * r for r in (ratio.low, mid, ratio.high)))
    return costs


def _relative_times(plan: Plan, history: History) -> dict[Plan, Interval]:
    """Return the times per call of all plans that duels connect with this one, relative to its own: 1."""
    return {plan: Interval(1.0, 1.0, 1.0), **relative_speeds(history.trials, plan)}


def _group_by_duels(history: History) -> list[set[Plan]]:
    """List the sets of paying plans that duels connect, of two plans at least."""
    paying = {trial.plan for trial in history.list_paying()}
    sets: list[set[Plan]] = []
    for plan in paying:
        if not any(plan in known for known in sets):
            sets.append({plan, *relative_speeds(history.trials, plan)} & paying)
    return [known for known in sets if len(known) > 1]


def _simplest_of_the_least(costs: dict[Plan, Interval]) -> Plan:
    """Return the simplest of the plans whose costs are near the least one and overlap with it."""
    least = min(costs.values(), key=lambda cost: cost.mid)
    tied = [plan for plan, cost in costs.items() if cost.overlaps(least) and cost.mid <= least.mid * (1 + TIE)]
    return min(tied, key=lambda plan: (complexity_of(plan), costs[plan].mid))


def _gain(challenger: Trial, leader: Trial, costs: dict[Plan, Interval], history: History) -> float:
    """Return the expected saving in seconds from knowing which of two plans is the cheaper."""
    behind = costs[challenger.plan].mid - costs[leader.plan].mid
    spread = hypot(*(_spread(trial, history) for trial in (challenger, leader)))
    z = behind / spread
    return spread * _UNIT.pdf(z) - behind * _UNIT.cdf(-z)


def _spread(trial: Trial, history: History) -> float:
    """Return the standard deviation of the total time of a plan's calls between processes, in seconds."""
    each = history.economics.seconds_per_call(trial)
    of_interval = (each.high - each.low) / 2 / _OF_95
    return history.economics.calls * hypot(of_interval, PROCESS_SPREAD[history.workload.device] * each.mid)


def _predict_duel_s(challenger: Trial, leader: Trial, history: History, cached: Container[Plan]) -> float:
    """Predict the seconds of a duel: both compile, from warm caches if there are some, and are timed."""
    compiling = 0.0
    for trial in (challenger, leader):
        assert trial.costs is not None, "a plan that pays was compiled"
        share = WARM_SHARE if trial.plan.backend != "eager" else 1.0  # which has nothing in a cache
        warm_s = share * trial.costs.cold_s if trial.costs.warm_s is None else trial.costs.warm_s
        compiling += warm_s if trial.plan in cached else trial.costs.cold_s
    return compiling + history.min_noncompile_s


def next_repeat(history: History, most: int, half_width: float, plans: int) -> Trial | None:
    """Return the plan to time in one more process, or None if the choice is plain, or nothing more can tell.

    Args:
        most: processes that a plan is timed in, its trial's own included.
        half_width: relative half-width of a speed-up's interval that is narrow enough.
        plans: how many plans may have more than their trial's own, beside the one that is chosen so far.
    """
    if history.workload.objective == "memory":
        return None  # there bytes decide
    chosen = cheapest(history)
    if chosen is not None and chosen.plan.backend != "eager" and len(chosen.processes) < min(LEAST, most):
        return chosen
    if not history.eager_fits:
        return None
    for trial in history.list_promising()[:plans]:
        if _is_plain(trial, history, half_width):
            return None
        if len(trial.processes) < most:
            return trial
        if history.economics.surely_pays(trial):  # by all of them, and whatever another plan's would tell
            return None
    return None


def _is_plain(trial: Trial, history: History, half_width: float) -> bool:
    """Return whether one more process would hardly change the choice between a promising plan and eager."""
    assert trial.speedup is not None, "a promising plan was timed"
    cost, eager = history.economics.cost(trial), history.economics.baseline_cost
    reach = cost.high - cost.mid
    distance = (eager - cost.mid) / reach if reach else math.copysign(math.inf, eager - cost.mid)
    return is_plain(trial.speedup, distance, len(trial.processes), half_width)


def next_cold(history: History, most: int, half_width: float) -> Trial | None:
    """Return the chosen plan, to be timed with cold processor caches in one more process.

    It is None if no plan is chosen. It is also None if it is known whether the plan is then faster than eager, or if
    that cannot be known. This timing decides nothing, so a single process is enough if it tells by a margin.

    Args:
        most: processes that a plan is timed in with cold caches.
        half_width: relative half-width of the interval that is narrow enough.
    """
    trial = cheapest(history)
    if trial is None or len(trial.cold_speedups) >= most:
        return None
    if (ratio := trial.cold_speedup) is None:
        return trial
    reach = PLAIN_LATER * (math.log(ratio.high) - math.log(ratio.mid))
    return None if ratio.half_width <= half_width or abs(math.log(ratio.mid)) > reach else trial


def prune_below(history: History) -> float:
    """Return the speed-up that a candidate must be able to reach, or else is stopped, with 0 to stop none.

    The leader is the plan whose cost at the slow end of its interval is the least. A plan that leads by noise would
    stop faster ones. Its cost includes its compiling, and a slower candidate that compiled for nothing could still cost
    less. So the bound is the speed at which a candidate with no compile time would cost as much as the leader.
    """
    economics = history.economics
    surely = min((economics.cost(trial).high for trial in history.list_paying()), default=None)
    if surely is not None and history.workload.objective != "memory":
        return MARGIN * economics.baseline_cost / surely
    # Any plan that keeps a memory limit which eager exceeds is wanted, and saving memory usually takes time. Otherwise
    # it is enough not to be slower than eager.
    return MARGIN if history.eager_fits else 0.0
