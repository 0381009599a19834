"""Rewrites by name. Each is declared in `plan/choices/`, and the declaration names the function that realizes it.

Some give the model another form before anything is compiled or captured. Some rewrite the graphs for Inductor. Some are
a layer that is compiled with the model. `torchwise.plan.choice.Stage` describes the function of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchwise.errors import UnsupportedError
from torchwise.plan.choice import Choice, Stage, find_choice, list_values, load_choices, load_code

Layer = Callable[[Callable[..., Any]], Callable[..., Any]]


def check_transforms(names: Sequence[str]) -> None:
    """Refuse names of rewrites that nothing realizes."""
    for name in names:
        choice = _find(name)
        if choice is not None and (choice.stage is None or choice.realized_by is None):
            raise UnsupportedError(
                f"transforms has {name!r}, but its declaration names no stage, or no function for it"
            )
        if choice is None:
            known = sorted(list_values("transforms"), key=lambda one: (list(Stage).index(_stage_of(one)), one))
            raise UnsupportedError(f"transforms has {name!r}, but there are {', '.join(known)}")


def load_transforms(names: Sequence[str], *stages: Stage) -> list[Callable[..., Any]]:
    """Return the functions that realize those of `names` that act at one of `stages`, in the order of `names`."""
    found = [choice for choice in map(_find, names) if choice is not None and choice.stage in stages]
    return [load_code(choice.realized_by) for choice in found if choice.realized_by is not None]


def list_at(names: Sequence[str], *stages: Stage) -> tuple[str, ...]:
    """List those of `names` that act at one of `stages`."""
    return tuple(name for name in names if (choice := _find(name)) is not None and choice.stage in stages)


def list_prepared(names: Sequence[str]) -> tuple[str, ...]:
    """List those of `names` that rewrite functions and have values of weights computed once."""
    found = (_find(name) for name in list_at(names, Stage.TRACE))
    return tuple(choice.value for choice in found if choice is not None and choice.derives_weights)


def has_stage(names: Sequence[str], *stages: Stage) -> bool:
    """Whether one of `names` acts at one of `stages`."""
    return bool(list_at(names, *stages))


def transform_model(call: Callable[..., Any], names: Sequence[str]) -> tuple[Callable[..., Any], list[Layer]]:
    """Apply those of `names` that act on the model, in order, and return the new callable and the layers."""
    layers = []
    for name in names:
        for transform in load_transforms((name,), Stage.FORM, Stage.MODEL):
            try:
                call, layer = transform(call)
            except UnsupportedError as error:  # it is given the model alone, so no other part of the plan is the reason
                error.about = error.about or (("transforms", name),)
                raise
            layers.append(layer)
    return call, layers


def _find(name: str) -> Choice | None:
    load_choices()
    return find_choice("transforms", name)


def _stage_of(name: str) -> Stage:
    choice = _find(name)
    return choice.stage if choice is not None and choice.stage is not None else Stage.CALL
