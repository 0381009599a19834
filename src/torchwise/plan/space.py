"""The plans that are legal and mean something for one workload on one device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchwise.errors import PlanError
from torchwise.plan.choice import ANY, Choice, find_choice, load_choices
from torchwise.plan.effort import check_effort, is_at_least
from torchwise.plan.numerics import Numerics
from torchwise.plan.plan import EAGER, Plan
from torchwise.plan.plug_ins import WAY_OUT
from torchwise.plan.rules import iter_changes
from torchwise.plan.trait import Trait


@dataclass(frozen=True, slots=True)
class PlanSpace:
    """The open choices, given the device, the workload's traits and the user's limits.

    Attributes:
        device: "cpu" or "cuda".
        mode: "inference" or "training".
        traits: traits that the inspection found in the workload, such as `Trait.GEMM`.
        allow: the loosest numerics allowed.
        effort: "quick", "standard" or "thorough".
    """

    device: str
    mode: str
    traits: frozenset[Trait]
    allow: Numerics = Numerics.SAME_PRECISION
    effort: str = "standard"

    def __post_init__(self) -> None:
        check_effort(self.effort)

    def choices(self) -> list[Choice]:
        """List the choices open here, cheapest to compile first."""
        known = [choice for choice in load_choices().values() if choice.value != ANY]
        open_here = [choice for choice in known if self.excludes(choice) is None]
        return sorted(open_here, key=lambda choice: choice.compile_factor)

    def excludes(self, choice: Choice) -> str | None:
        """Return the reason why a choice is closed here, or None if it is open."""
        if self.device not in choice.devices:
            return f"it is for {' and '.join(choice.devices)}, and this is {self.device}"
        if self.mode not in choice.modes:
            return f"it is for {' and '.join(choice.modes)}, and this is {self.mode}"
        if not self.allow.allows(choice.numerics):
            return f"it is {choice.numerics}, and only up to {self.allow} is allowed"
        if lacking := choice.tell_missing_package(self.device):
            return lacking
        if missing := [need for need in choice.required_traits if need not in self.traits]:
            return _explain_missing(missing[0])
        if barred := self.bars(choice):
            return barred
        if not is_at_least(self.effort, least := choice.least_effort(self.traits, self.device)):
            return f"it is tried from effort {least} on"
        return None

    def bars(self, choice: Choice) -> str | None:
        """Return why a trait of the workload closes a choice, or None."""
        return next((reason for trait, reason in choice.excluded_by if trait in self.traits), None)

    def neighbours(self, plan: Plan) -> Iterator[tuple[Plan, Choice]]:
        """Yield every legal plan one choice away from `plan`, with that choice: added, or in another's place.

        A choice that brings others along counts as one, and also appears with no more of them than it needs. A rolled
        plan also has its unrolled form, compiled at once, as a neighbour, which no choice stands for. Choices that
        cannot be rolled, such as constants in place of weights, are added to that form. Those that an option refuses,
        such as another precision, are added in its place.
        """
        choices = self.choices()
        open_here = {choice.key for choice in choices}
        found: set[Plan] = set()
        bases = [plan, replace(plan, scope="whole")] if plan.scope == "rolled" else [plan]
        bases += [replace(base, options=kept) for base in bases if (kept := _list_undemanding(base)) != base.options]
        for choice in choices:
            if _has(plan, choice):
                continue
            brings = (*choice.implies, *(part for trait, part in choice.implies_for if trait in self.traits))
            brought = tuple(part for part in brings if part in open_here)
            needed = tuple(part for part in brought if part in choice.requires)
            for along in dict.fromkeys((brought, needed)):  # which often are the same: then it is built once
                neighbour = next(filter(None, (_with(base, choice, along) for base in bases)), None)
                if neighbour is not None and neighbour not in found:
                    found.add(neighbour)
                    yield neighbour, choice
        compiler = load_choices().get(("backend", plan.backend))
        if plan.scope == "rolled" and compiler is not None and compiler.key in open_here:
            yield replace(plan, scope="whole"), compiler


def _list_undemanding(plan: Plan) -> tuple[tuple[str, Any], ...]:
    """List the options of a plan without those that may refuse its other choices."""
    found = ((option, find_choice("options", option)) for option in plan.options)
    return tuple(option for option, choice in found if choice is None or choice.find_problems is None)


def _explain_missing(trait: Trait) -> str:
    return f"it is for a model that {trait.summary}" if trait.summary else f"the workload has no {trait.label}"


def choices_of(plan: Plan) -> list[Choice]:
    """List the choices that make up `plan`: registered ones, and a cautious stand-in for any other compiler option.

    Raises:
        PlanError: the plan holds an unregistered value, so that its numerics are unknown.
    """
    return [_find_choice(field, value) for field, value in iter_changes(plan)]


def _find_choice(field: str, value: Any) -> Choice:
    known = load_choices()
    choice = find_choice(field, value)
    if choice is not None and field == "options" and type(choice.value[1]) is not type(value[1]):
        choice = None  # an option 1 is another than True, which Python holds equal
    choice = choice or known.get((field, ANY))
    if choice is None and field == "options":
        return _unknown_option(value)
    if choice is None:
        described = [str(other.value) for other in known.values() if other.field == field]
        instead = f"use one of {', '.join(described)}" if described else "leave it out"
        raise PlanError(
            f"{field} is {value!r}, which no choice of this version describes, so that nothing is known of what it may "
            f"change: {instead}, {WAY_OUT}"
        )
    return choice


def _unknown_option(option: tuple[str, Any]) -> Choice:
    """Return a stand-in for a compiler option that no choice describes. It is unregistered, so never proposed."""
    name, value = option
    summary = f"compiler option {name}={value}: its effect on the arithmetic is unknown and must be allowed explicitly"
    return Choice("options", option, Numerics.SUBSTITUTED, complexity=2, summary=summary, compile_factor=1.0)


def numerics_of(plan: Plan) -> Numerics:
    """Return the loosest numerics among the plan's choices, or exact for eager."""
    return max((choice.numerics for choice in choices_of(plan)), key=lambda level: level.rank, default=Numerics.EXACT)


def complexity_of(plan: Plan) -> int:
    """Return the summed complexity of the plan's choices, or 0 for eager. Ties go to the smaller."""
    return sum(choice.complexity for choice in choices_of(plan))


def compile_factor_of(plan: Plan) -> float:
    """Return the plan's compile time as a multiple of a plain compile, or 0 if it compiles nothing."""
    factors = [choice.compile_factor for choice in choices_of(plan) if choice.compile_factor > 0]
    return math.prod(factors) if factors else 0.0


def _with(plan: Plan, choice: Choice, along: Iterable[tuple[str, Any]]) -> Plan | None:
    """Return the plan with a choice, and with the brought choices that it lacks, or None if the rules refuse that."""
    try:
        made = _add_choice(plan, choice, along)
    except PlanError:  # a combination that the rules refuse is simply not in the space
        return None
    return made if all(_stands(made, part) for part in choices_of(made)) else None


def _add_choice(plan: Plan, choice: Choice, along: Iterable[tuple[str, Any]]) -> Plan:
    """Return the plan with all of them. Fields change at once, as a value may be legal only with the others."""
    alone = [(field, value) for field, value in along if field != "transforms"]
    changed = {field: value for field, value in alone if getattr(plan, field) == getattr(EAGER, field)}
    if choice.field not in ("options", "transforms"):
        changed[choice.field] = choice.value
    plan = replace(plan, **changed)
    for field, value in along:
        if field == "transforms" and value not in plan.transforms:
            plan = plan.with_choice(field, value)
    return plan if choice.field in changed else plan.with_choice(choice.field, choice.value)


def _has(plan: Plan, choice: Choice) -> bool:
    if choice.field == "options":
        return plan.option(choice.value[0]) is not None
    if choice.field == "transforms":
        return choice.value in plan.transforms
    return bool(getattr(plan, choice.field) == choice.value)


def _stands(plan: Plan, choice: Choice) -> bool:
    """Whether the plan holds the values that a choice only makes sense with."""
    return all(getattr(plan, field) == value for field, value in choice.requires)
