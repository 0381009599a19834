"""The plan of least cost, and the duels that tell plans apart where their trials cannot.

Each trial has a process of its own, and weighs its plan against eager alone. So what makes one process faster than the
next, and whatever eager does in it, is in the ratio of two trials. Two plans timed in alternation in one process share
all of that, and their ratio says which is the faster (the idea of paired designs, as in `measure.pairs`).

A duel costs time as well. It is held where the better choice that it may lead to is expected to save more than that:
the expected value of perfect information about the difference of two normal costs (Raiffa & Schlaifer, Applied
Statistical Decision Theory, 1961, section 5.3).
"""

from __future__ import annotations

from collections.abc import Collection
from math import hypot
from statistics import NormalDist

from torchwise.decide.history import TIE, History
from torchwise.plan import Plan
from torchwise.plan.space import complexity_of
from torchwise.records import Trial

PROCESS_SPREAD = {"cpu": 0.06, "cuda": 0.025}
"""Relative standard deviation of a plan's speed-up from one process to another, beyond what its interval says: two
plans of one speed, in nine searches on two CPU cores (`benchmarks/duels.py`: 9.8 % for their ratio), and one plan in
three times ten searches on an H200 (`benchmarks/agreement.py`: 1.7 to 3.0 %)."""
_UNIT = NormalDist()
_OF_95 = _UNIT.inv_cdf(0.975)


def cheapest(history: History) -> Trial | None:
    """Return the simplest of the plans that are tied for the least expected cost; None where none surely pays."""
    costs = _costs(history)
    least = min(costs.values(), default=0.0)
    tied = [t for t in history.paying() if costs.get(t.plan, float("inf")) <= least * (1 + TIE)]
    return min(tied, key=lambda t: (complexity_of(t.plan), costs[t.plan]), default=None)


def next_duel(
    history: History, cached: Collection[Plan] = (), apart: Collection[Plan] = ()
) -> tuple[Trial, Trial] | None:
    """Return whom it is best to time beside the cheapest plan, and that plan; None where none is worth it.

    Args:
        history: what is known.
        cached: plans that start from warm caches; all others compile anew.
        apart: plans that cannot be timed beside another.
    """
    leader = cheapest(history)
    if leader is None or history.workload.objective == "memory":
        return None
    costs = _costs(history)
    others = [t for t in history.paying() if t.plan not in costs and t.plan not in apart]
    worth = {t.plan: _gain(t, leader, costs[leader.plan], history) - _price(t, leader, history, cached) for t in others}
    challenger = max(others, key=lambda t: worth[t.plan], default=None)
    return (challenger, leader) if challenger is not None and worth[challenger.plan] > 0 else None


def front(history: History, count: int) -> list[Plan]:
    """List the plan that is cheapest as far as is known, and the `count` that come next by their trials."""
    leader = cheapest(history)
    if leader is None:
        return []
    ranked = sorted(history.paying(), key=lambda trial: history.economics.cost(trial).mid)
    return [leader.plan, *[trial.plan for trial in ranked if trial is not leader][:count]]


def _costs(history: History) -> dict[Plan, float]:
    """Return expected seconds for everything, of the plan that is cheapest by the trials and all that duels tie to it.

    Of what is tied for that the simplest stands for the rest, which a duel may then weigh against it.
    """
    economics, paying = history.economics, {t.plan: t for t in history.paying()}
    if not paying:
        return {}
    by_trials = {plan: economics.cost(trial) for plan, trial in paying.items()}
    least = min(by_trials.values(), key=lambda cost: cost.mid)
    tied = [plan for plan, c in by_trials.items() if c.overlaps(least) and c.mid <= least.mid * (1 + TIE)]
    first = min(tied, key=lambda plan: (complexity_of(plan), by_trials[plan].mid))
    each = _seconds_beside(first, history)
    return {
        plan: economics.overhead(paying[plan]) + economics.calls * seconds
        for plan, seconds in each.items()
        if plan in paying
    }


def _seconds_beside(first: Plan, history: History) -> dict[Plan, float]:
    """Return seconds per call of a plan, and of those that duels lead to from it, all on the scale of its trial."""
    seconds = {first: history.seconds_of(first)}
    found = True
    while found:
        found = False
        for trial in history.trials:
            if trial.duel is None:
                continue
            plan, rival, ratio = trial.plan, trial.duel.rival, trial.duel.measurement.speedup.mid
            if (plan in seconds) is not (rival in seconds):
                found = True
                seconds |= {plan: seconds[rival] / ratio} if rival in seconds else {rival: seconds[plan] * ratio}
    return seconds


def _gain(challenger: Trial, leader: Trial, cost: float, history: History) -> float:
    """Return the seconds that knowing which of two is the cheaper, by more than a tie, is expected to save."""
    behind = history.economics.cost(challenger).mid - cost * (1 - TIE)
    spread = hypot(*(_spread(trial, history) for trial in (challenger, leader)))
    z = behind / spread
    return spread * _UNIT.pdf(z) - behind * _UNIT.cdf(-z)


def _spread(trial: Trial, history: History) -> float:
    """Return the standard deviation of a plan's cost from process to process, in seconds."""
    cost = history.economics.cost(trial)
    return hypot((cost.high - cost.low) / 2 / _OF_95, PROCESS_SPREAD[history.workload.device] * cost.mid)


def _price(challenger: Trial, leader: Trial, history: History, cached: Collection[Plan]) -> float:
    """Predict the seconds of a duel: both compile, from warm caches where there are some, and are timed."""
    compiling = 0.0
    for trial in (challenger, leader):
        assert trial.costs is not None, "a plan that pays was compiled"
        warm = trial.costs.warm_s if trial.plan in cached else None
        compiling += trial.costs.cold_s if warm is None else warm
    return compiling + history.beside_compiling_s
