"""What the required properties cost: the plan that would be chosen without them, and how much faster it is."""

from __future__ import annotations

from torchwise.plan import EAGER
from torchwise.records import Interval, Trial
from torchwise.records.decision import Price
from torchwise.records.format import seconds
from torchwise.records.statistics import ratio_of
from torchwise.records.verdict import Verdict
from torchwise.study.history import TIE, History

AS_EAGER = Interval(1.0, 1.0, 1.0)


def find_price(history: History, chosen: Trial | None) -> Price | None:
    """Return the price of the required properties, or None if none is required, or if they cost nothing.

    Args:
        history: the study, in which right plans that lack a property were timed as far as they could lead.
        chosen: the trial of the plan that is decided for, or None for eager.
    """
    economics = history.economics
    paying = [
        t
        for t in history.list_lacking()
        if t.measurement and not t.measurement.pruned and t.speedup and economics.surely_pays(t)
    ]
    best = min(paying, key=lambda t: economics.cost(t).mid, default=None)
    own_cost = economics.cost(chosen).mid if chosen else economics.baseline_cost
    if best is not None and best.speedup is not None and best.verdict is not None:
        plan, lacks, speedup, cost = best.plan, list_lacks(best.verdict), best.speedup, economics.cost(best).mid
    elif history.eager_lack is not None:  # without the requirement, eager would compete
        plan, lacks, speedup, cost = EAGER, (str(history.eager_lack.name),), AS_EAGER, economics.baseline_cost
    else:
        return None
    if own_cost - cost < TIE * own_cost:
        return None
    own_speedup = chosen.speedup if chosen and chosen.speedup else AS_EAGER
    return Price(plan, lacks, speedup, ratio_of(speedup, own_speedup), own_cost - cost)


def list_lacks(verdict: Verdict) -> tuple[str, ...]:
    """Return the names of the required properties that a right plan lacks."""
    return tuple(str(check.name) for check in verdict.checks if check.lacks_property)


def describe_price(history: History, price: Price | None) -> str:
    """Say what the required properties cost, or return "" if none is required or their cost is not known.

    That is so if time does not decide, as eager itself lacks a property or passes a limit, or memory is wanted.
    """
    if not history.workload.require:
        return ""
    if price is None and (history.workload.objective == "memory" or not history.eager_fits):
        return ""
    if price is None:
        names = " and ".join(history.workload.require)
        return f" To require {names} costs nothing: no plan without that would be chosen."
    own_speed = "" if price.plan.is_eager else f" at {price.speedup} times eager's speed,"
    other = (
        f"{price.plan} is right but not {' nor '.join(price.lacks)}, and runs{own_speed} "
        f"{'at ' if price.plan.is_eager else ''}{price.ratio} times this choice's"
    )
    if price.ratio.low <= 1:
        return f" Whether the requirement costs anything is inconclusive: {other}."
    more = f", and would save about {seconds(price.seconds)} more" if price.ratio.is_usable else ""
    return f" The requirement has a price: {other}{more}."


def describe_eager_lack(history: History) -> str:
    """Return such as "deterministic (…)" for the first required property that eager lacks, or ""."""
    lack = history.eager_lack
    return f"{lack.name} ({lack.detail})" if lack else ""
