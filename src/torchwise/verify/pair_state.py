"""Parts of the comparison of a pair: the state that is compared, and the inputs that the candidate refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.observe import Observation
from torchwise.workload import Example
from torchwise.workload.module_state import kept_state


def drop_private_state(has_own_state: bool, candidate: Observation, native: Observation) -> Observation:
    """Leave out a candidate's own caches and counters, and other weights than the reference's."""
    known = {name for name, _ in native.leaves}
    private = ("state ", "buffer ", *(() if has_own_state else ("gradient of ",)))
    leaves = [(n, v) for n, v in candidate.leaves if n in known or not n.startswith(private)]
    told = {name for name, _ in leaves}
    if not has_own_state:
        names = {n for n in known - told if n.startswith(private) and not n.startswith("gradient of input")}
        leaves += [(n, v) for n, v in native.leaves if n in names]
    order = {name: place for place, (name, _) in enumerate(native.leaves)}
    leaves.sort(key=lambda pair: order.get(pair[0], len(order)))
    return replace(candidate, leaves=tuple(leaves))


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
