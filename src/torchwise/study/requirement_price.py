"""What the required properties cost: the plan that would be chosen without them, and how much faster it is."""

from __future__ import annotations

from torchwise.records import Interval, Trial
from torchwise.records.decision import Price
from torchwise.records.format import seconds
from torchwise.records.statistics import ratio_of
from torchwise.records.verdict import Verdict
from torchwise.study.history import TIE, History


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
    if best is None or best.speedup is None or best.verdict is None:
        return None
    own_cost = economics.cost(chosen).mid if chosen else economics.baseline_cost
    saving = own_cost - economics.cost(best).mid
    if saving < TIE * own_cost:
        return None
    speedup = chosen.speedup if chosen and chosen.speedup else Interval(1.0, 1.0, 1.0)
    return Price(best.plan, list_lacks(best.verdict), best.speedup, ratio_of(best.speedup, speedup), saving)


def list_lacks(verdict: Verdict) -> tuple[str, ...]:
    """Return the names of the required properties that a right plan lacks."""
    return tuple(str(check.name) for check in verdict.checks if check.lacks_property)


def describe_price(history: History, price: Price | None) -> str:
    """Say what the required properties cost, or return "" if none is required."""
    if not history.workload.require:
        return ""
    if price is None:
        names = " and ".join(history.workload.require)
        return f" To require {names} costs nothing: no plan without that would be chosen."
    other = (
        f"{price.plan} is right but not {' nor '.join(price.lacks)}, and runs at {price.speedup} times eager's speed, "
        f"{price.ratio} times this choice's"
    )
    if price.ratio.low <= 1:
        return f" Whether the requirement costs anything is inconclusive: {other}."
    more = f", and would save about {seconds(price.seconds)} more" if price.ratio.is_usable else ""
    return f" The requirement has a price: {other}{more}."


def describe_eager_lack(history: History) -> str:
    """Return such as "deterministic (…)" for the first required property that eager lacks, or ""."""
    lack = history.eager_lack
    return f"{lack.name} ({lack.detail})" if lack else ""
