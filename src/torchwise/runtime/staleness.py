"""Whether a decision holds for a model on this machine.

Libraries and programs leave marks on a model: that its weights were loaded, its name, who prepared it. An attribute
that no code reads which a call may run changes no answer, and so it makes no decision stale.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from torchwise import environment
from torchwise.compile.guards.reachable_code import ReachableCode, find_names
from torchwise.plan.known_names import find_unusable_part
from torchwise.plan.rules import find_choices
from torchwise.records import Decision
from torchwise.records.structure_differences import (
    OTHER_WEIGHTS,
    DetailKind,
    DetailName,
    Details,
    another_model,
    pack_details,
    stands_for_code,
    unpack_details,
)
from torchwise.workload.identity import Attributes, structure
from torchwise.workload.structure_details import details_of
from torchwise.workload.train_step import TrainStep
from torchwise.workload.weights import UNREADABLE, digest_weights

MAX_FUNCTIONS = 10_000


def stale_because(model: Callable[..., Any], decision: Decision) -> str | None:
    """Return how this model or machine differs from the decision's, or None if the decision holds."""
    if different := decision.list_changes(environment.detect(decision.environment.device)):
        return "; ".join(different)
    if unusable := find_unusable_part(decision.plan):
        return unusable
    return _find_other_structure(model, decision) or find_other_weights(model, decision)


def find_other_weights(model: Callable[..., Any], decision: Decision) -> str | None:
    """Return why a decision does not hold for the values of a model's weights, or None if it does.

    The user's tolerance judged some plans, by an error that depends on the weights. No weights are known of such a
    decision by an earlier version. Training changes weights in any case, and holds gradients to the tolerance as well.
    """
    is_judged = any(choice.numerics.is_judged_by_user for choice in find_choices(decision.plan))
    if decision.workload.mode == "training" or not is_judged:
        return None
    is_same = decision.weights not in ("", UNREADABLE) and digest_weights(model) == decision.weights
    return None if is_same else OTHER_WEIGHTS


def _find_other_structure(model: Callable[..., Any], decision: Decision) -> str | None:
    if structure(model) == decision.structure:
        return None
    details = details_of(model)
    marks = find_marks(model, unpack_details(decision.structure_details), details)
    if marks and structure(model, marks) == decision.structure:
        return None
    return another_model(decision.structure_details, pack_details(details))


def find_marks(model: Callable[..., Any], before: Details, now: Details) -> Attributes:
    """Return differing attributes that no code reads, with their former values, or {} if anything else differs."""
    model = model.model if isinstance(model, TrainStep) else model
    differing = {text: DetailName.from_text(text) for text in {**before, **now} if before.get(text) != now.get(text)}
    if not before or not isinstance(model, torch.nn.Module):
        return {}
    if any(name.kind is not DetailKind.ATTRIBUTE for name in differing.values()):
        return {}
    parts, read = dict(model.named_modules()), names_read_by(model)
    if read is None:
        return {}
    marks: dict[int, dict[str, str | None]] = {}
    for text, name in differing.items():
        path, _, attribute = name.path.rpartition(".")
        was = before.get(text)
        if path not in parts or attribute in read or stands_for_code(was):
            return {}
        marks.setdefault(id(parts[path]), {})[attribute] = was
    return marks


def names_read_by(model: torch.nn.Module) -> set[str] | None:
    """Return the names in all code that a call of a model may run, its hooks and objects included.

    The result is None if that is too much code to search.
    """
    parts = list(model.modules())
    kinds = {cls for part in parts for cls in type(part).__mro__}
    hooks = [
        hook for part in parts for each in (part._forward_hooks, part._forward_pre_hooks) for hook in each.values()
    ]
    attribute_types = {type(value) for part in parts for value in vars(part).values()}
    reached = ReachableCode(hooks, kinds | attribute_types, most=MAX_FUNCTIONS)
    if len(reached.functions) >= MAX_FUNCTIONS:
        return None
    of_torch = [cls for cls in kinds if cls.__module__.startswith("torch.") and cls is not torch.nn.Module]
    functions = [value for cls in of_torch for value in vars(cls).values() if isinstance(value, types.FunctionType)]
    return reached.names.union(*(find_names(function.__code__) for function in functions))
