"""Rules for plans: those of every plan, and those that its choices declare. Each names the value it refuses and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from torchwise.errors import PlanError, is_count
from torchwise.plan.choice import CHOICES, Choice, Stage, find_choice, list_values, load_choices, load_own_choices

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes in which Inductor itself captures CUDA graphs."""
DEFAULTS = {
    "precision": "native",
    "memory_format": "preserve",
    "scope": "whole",
    "capture": "none",
    "shapes": "static",
    "mode": "default",
    "optimizer": "preserve",
    "activation_checkpointing": "none",
}
"""The defaults of fields whose other values are the choices of them."""


def list_allowed(field: str) -> tuple[str, ...]:
    """List the values that a field of `DEFAULTS` may have."""
    return (DEFAULTS[field], *list_values(field))


def check(plan: Plan) -> None:
    """Refuse a plan that is illegal or means nothing with a `PlanError` that gives the value and the rule."""
    for problem in _problems(plan):
        raise PlanError(problem)


def check_containers(transforms: Any, options: Any) -> None:
    """Refuse transforms that are no names and options that are no pairs of a name and a value, each name once."""
    if not isinstance(transforms, (tuple, list)) or not all(isinstance(name, str) and name for name in transforms):
        raise PlanError(f"transforms is {transforms!r}, but must hold the names of rewrites")
    if not isinstance(options, (tuple, list)) or not all(_is_pair(option) for option in options):
        raise PlanError(f"options is {options!r}, but must hold pairs of a name and a value")
    for name, times in Counter(name for name, _ in options).items():
        if times > 1:
            values = " and ".join(repr(value) for other, value in options if other == name)
            raise PlanError(f"option {name} is {values}, but an option may be given only once")


def _is_pair(option: Any) -> bool:
    return isinstance(option, (tuple, list)) and len(option) == 2 and isinstance(option[0], str)


def _problems(plan: Plan) -> Iterator[str]:
    for name, default in DEFAULTS.items():
        value = getattr(plan, name)
        if value != default and (not isinstance(value, str) or not _is_allowed(name, value)):
            yield f"{name} is {value!r}, but must be one of {', '.join(list_allowed(name))}"
    if not isinstance(plan.backend, str) or not plan.backend:
        yield f"backend is {plan.backend!r}, but must name a backend, such as eager or inductor"
    if plan.threads is not None and not is_count(plan.threads):
        yield f"threads is {plan.threads!r}, but must be a whole number of at least 1, or left out"
    if not is_count(plan.microbatches):
        yield f"microbatches is {plan.microbatches!r}, but must be a whole number of at least 1"
    for name, value in plan.options:
        if type(value) not in (bool, int, str):
            yield f"option {name} is {value!r}, but must be true, false, a whole number or a string"
    if plan.backend == "eager":
        yield from _eager_problems(plan)
    for choice in find_choices(plan):
        if choice.find_problems is not None:
            yield from choice.find_problems(plan)
        if choice.stage is Stage.TRACE and plan.scope == "rolled":
            yield f"transforms has {choice.value!r}, which rewrites functions, but scope is 'rolled', of operators"
        backend = dict(choice.requires).get("backend", plan.backend)
        if backend not in ("eager", plan.backend) and _is_own_backend(plan.backend):
            yield f"{choice.field} has {choice.value!r}, which is for {backend}, but backend is {plan.backend!r}"
    if plan.of_a_step and (plan.capture in ("call", "branches") or plan.precision == "bf16" or has_fixed_weights(plan)):
        yield f"{plan.to_json()} is of a training step, but one call captured, bf16 and frozen weights do not train"
    if plan.capture != "none" and plan.mode in CUDA_GRAPH_MODES:
        yield f"capture is {plan.capture!r}, but mode {plan.mode!r} captures CUDA graphs by itself: choose one"
    if plan.capture != "none" and plan.shapes == "dynamic" and not _captures_all_sizes(plan):
        yield f"capture is {plan.capture!r}, which records graphs of one shape: shapes must be static"
    if plan.capture != "none" and plan.threads is not None:
        yield f"threads is {plan.threads}, but a captured call runs on the GPU, where threads mean nothing"


def _captures_all_sizes(plan: Plan) -> bool:
    """Whether a plan captures calls of any size, each in a graph of its own."""
    choice = find_choice("capture", plan.capture)
    return choice is not None and choice.dynamic_shapes


def _is_own_backend(name: str) -> bool:
    """Whether a backend is Torchwise's own. One of a plug-in may take Dynamo's graphs, as Inductor does."""
    choice = CHOICES.get(("backend", name))
    return choice is not None and str(choice.realized_by).startswith("torchwise.")


def _is_allowed(field: str, value: str) -> bool:
    load_own_choices()
    return (field, value) in CHOICES or (field, value) in load_choices()


def _eager_problems(plan: Plan) -> Iterator[str]:
    for name, value, plain in (
        ("mode", plan.mode, "default"),
        ("scope", plan.scope, "whole"),
        ("shapes", plan.shapes, "static"),
        ("options", plan.options, ()),
    ):
        if value != plain and not (name == "shapes" and _captures_all_sizes(plan)):
            yield f"{name} is {value!r}, but eager compiles nothing: {name} needs a compiling backend"
    if plan.optimizer == "compiled":
        yield "optimizer is 'compiled', but eager compiles nothing: it needs a compiling backend"
    for choice in find_choices(plan):
        if choice.field == "transforms" and ("backend", "inductor") in choice.requires:
            name = choice.value
            yield f"transforms has {name!r}, but eager compiles nothing: {name} changes what a compiler is given"
    if plan.activation_checkpointing == "graph":
        yield "activation_checkpointing is 'graph', but eager compiles nothing: it needs a compiling backend"


def find_choices(plan: Plan) -> list[Choice]:
    """List the registered choices that a plan is made of. Plug-ins are loaded only for a value that is not known."""
    changes = list(iter_changes(plan))
    if changes:
        load_own_choices()
    if not all(find_choice(*change) for change in changes):
        load_choices()
    return [choice for change in changes if (choice := find_choice(*change)) is not None]


def freezes_weights(plan: Plan) -> bool:
    """Return whether the weights are constants of the plan's code, which is stale when they change."""
    return any(choice.freezes_weights for choice in find_choices(plan))


def keeps_code(plan: Plan) -> bool:
    """Return whether a later process finds the plan's code in PyTorch's caches."""
    return all(choice.keeps_code for choice in find_choices(plan))


def has_fixed_weights(plan: Plan) -> bool:
    """Return whether a plan holds for the present values of the weights alone, so that it is stale when they change."""
    return any(choice.freezes_weights or choice.derives_weights for choice in find_choices(plan))


def find_export_problems(plan: Plan) -> Iterator[str]:
    """Yield the reason why the graphs of a plan cannot be exported for its backend."""
    if plan.precision.startswith("autocast"):
        yield f"precision is {plan.precision!r}, but backend {plan.backend!r} takes no graph with autocast: use bf16"


def iter_changes(plan: Plan) -> Iterator[tuple[str, Any]]:
    """Yield the changes of `plan`, part by part: a field and its value, with options and transforms each by itself."""
    for field in fields(plan):
        value = getattr(plan, field.name)
        if field.name in ("options", "transforms"):
            yield from ((field.name, item) for item in value)
        elif value != field.default:
            yield field.name, value


def merge_changes(changes: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of the plan with these changes, as `iter_changes` yields them."""
    merged: dict[str, Any] = {}
    for field, value in changes:
        merged[field] = (*merged.get(field, ()), value) if field in ("options", "transforms") else value
    return merged
