"""Parts of the comparison of a pair: the state that is compared, and the inputs that the candidate refuses."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.observe import Observation, name_of_weight
from torchwise.workload import Example
from torchwise.workload.module_state import kept_state

STATE, BUFFER, GRADIENT = "state ", "buffer ", "gradient of "
"""How the names of such leaves begin."""


def drop_private_state(
    candidate: Observation, native: Observation, shared: Container[str], *, has_own_state: bool
) -> Observation:
    """Leave out a candidate's own caches and counters, and other weights than the reference's.

    Args:
        candidate: the observation to cut down.
        native: the reference's.
        shared: names of the weights and buffers that both sides have. A candidate may change no other ones of these.
        has_own_state: whether the candidate's weights have the reference's names and shapes.
    """
    known = {name for name, _ in native.leaves}
    private = (STATE, BUFFER, *(() if has_own_state else (GRADIENT,)))
    leaves = [(n, v) for n, v in candidate.leaves if n in known or not n.startswith(private) or is_of_weight(n, shared)]
    told = {name for name, _ in leaves}
    if not has_own_state:
        names = {n for n in known - told if n.startswith(private) and not n.startswith("gradient of input")}
        leaves += [(n, v) for n, v in native.leaves if n in names]
    order = {name: place for place, (name, _) in enumerate(native.leaves)}
    leaves.sort(key=lambda pair: order.get(pair[0], len(order)))
    return replace(candidate, leaves=tuple(leaves))


def is_of_weight(leaf: str, weights: Container[str]) -> bool:
    """Whether a leaf is a change of one of some weights, such as "state linear.weight after the call"."""
    return leaf.startswith(STATE) and name_of_weight(leaf.removeprefix(STATE).split(" ", 1)[0]) in weights


def changes_state(call: Callable[..., Any], example: Example) -> bool:
    """Return whether a call changes the state that the next one starts from, besides its inputs."""
    copy = example.clone()
    with torch.no_grad(), kept_state(call, copy.args, copy.kwargs) as state:
        call(*copy.args, **copy.kwargs)
        return any(not path.startswith("input ") for path in state.changes())


def explain_refusals(refused: Mapping[str, str]) -> Iterator[Check]:
    """Tell of inputs that the candidate does not support, by place: no fault of its, and not passed either."""
    if refused:
        (place, error), count = next(iter(refused.items())), len(refused)
        more = f", and {count - 1} more sets of inputs" if count > 1 else ""
        detail = (
            f"the candidate refuses {place}{more}, where it is neither right nor wrong: {error}. Describe inputs "
            "that leave them out"
        )
        yield Check(CheckName.ANSWER, Outcome.NOT_COMPARABLE, detail)
