"""Rules for options by the trials so far: which of them are due, and which are not worth a trial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torchwise.plan import EAGER, Choice, Numerics, Plan, PlanSpace, Trait
from torchwise.plan.rules import iter_changes
from torchwise.plan.space import choices_of
from torchwise.records import Trial
from torchwise.study.history import History, lays_out_by_itself
from torchwise.study.option import Option

LOST = 0.95
"""Speed relative to its base below which a choice counts as having lost."""
NEAR = 0.9
"""Share of the leader's speed from which on a plan counts as near it."""
CONVERTING = ("bf16", "autocast_bf16")
"""Precisions in which a layer of fewer bits converts its inputs."""
TRAILING = 2.0
"""Multiple of the leader's time from which on a compiled plan is not tried with another number of threads."""
OF_KERNELS = ("precision", "memory_format")
"""Fields whose values change the time that kernels take, and hardly that of the host."""


def was_hidden(option: Option, history: History) -> bool:
    """Return whether kernels were quicker with the value that an option puts in another's place.

    The GPU waited for the host then, which does not show what kernels take, and waits less with the option's base. So
    the comparison is due again: in half precision a model of short kernels gains little in eager, and much in a graph.
    """
    field, value = option.choice.field, option.choice.value
    if field not in OF_KERNELS or not option.is_replacement:
        return False
    leading = getattr(option.base, field)
    for trial in history.iter_timed():
        if getattr(trial.plan, field) == value:
            rivals = [one.plan for one in history.iter_timed() if getattr(one.plan, field) == leading]
            other = next((plan for plan in rivals if _parts_but(field, plan) == _parts_but(field, trial.plan)), None)
            busy_s, other_s = history.find_busy_s(trial.plan), history.find_busy_s(other) if other else None
            if busy_s and other_s and busy_s < LOST * other_s:
                return history.launch_gap_s(option.base) < LOST * history.launch_gap_s(trial.plan)
    return False


def has_fewer_bits_with_backend(trial: Trial) -> bool:
    """Return whether a trial had numbers of fewer bits in compiled code."""
    return trial.plan.backend != EAGER.backend and has_fewer_bits(trial.plan)


def has_fewer_bits(plan: Plan) -> bool:
    """Return whether a plan has numbers of fewer bits."""
    return any(choice.numerics is Numerics.QUANTIZED for choice in choices_of(plan))


def iter_own_precision(history: History) -> Iterator[tuple[Plan, Plan, Choice]]:
    """Yield the fastest plan with numbers of fewer bits in a lower precision, it without that, and such a choice.

    It must be near the leader.

    The lower precision often leads before them, so they are tried on it first. But each of their layers then converts
    its inputs twice, and the rest of a model may be as quick in the model's own.
    """
    rounded = [trial.plan for trial in history.iter_timed() if trial.plan.precision in CONVERTING]
    fastest = min(filter(has_fewer_bits, rounded), key=history.seconds_of, default=None)
    if fastest is not None and history.seconds_of(fastest) <= history.seconds_of(history.incumbent()) / NEAR:
        choice = next(one for one in choices_of(fastest) if one.numerics is Numerics.QUANTIZED)
        yield fastest, replace(fastest, precision=EAGER.precision), choice


def _parts_but(field: str, plan: Plan) -> frozenset[Any]:
    return frozenset(part for part in iter_changes(plan) if part[0] != field)


def is_trailing(plan: Plan, history: History) -> bool:
    """Return whether compiled code was so slow that waking fewer threads would not make it lead.

    Where threads wait for cores that other programs hold, it may.
    """
    without = replace(plan, threads=None)
    if plan.threads is None or plan.backend == EAGER.backend or history.find_trial(without) is None:
        return False
    is_far = history.seconds_of(without) > TRAILING * history.seconds_of(history.incumbent())
    return is_far and Trait.CONTENDED_CORES not in history.traits


def fails_like_others(plan: Plan, space: PlanSpace) -> bool:
    """Return whether a plan would change the memory layout of outputs from eager's, as other plans were seen to."""
    return Trait.RESTRIDED in space.traits and lays_out_by_itself(plan)


def is_for_other_shapes(plan: Plan, space: PlanSpace) -> bool:
    """Return whether a plan would compile or be captured at each call, not answer other sizes, or gain nothing."""
    grows, vary = (trait in space.traits for trait in (Trait.GROWS, Trait.SIZES_VARY))
    if plan.shapes == "dynamic":  # a graph of eager's kernels holds for one size with it, too
        return (grows and plan.capture != "none") or (plan.backend == EAGER.backend and not vary)
    return (grows and plan.backend != EAGER.backend) or vary
