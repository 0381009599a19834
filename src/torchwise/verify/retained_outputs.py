"""Check outputs that a program keeps across calls: an answer must not change when the next call is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.leaves import leaves_of
from torchwise.workload import pytree
from torchwise.workload.workload import Example


def check_retained_outputs(
    call: Callable[..., Any], eager: Callable[..., Any], first: Example, second: Example
) -> Check:
    """Keep the outputs for `first` while `second` is answered twice. They must not change.

    If both inputs are alike, values do not show an overwritten output. So memory shared between the answers counts too,
    unless eager's answers also share memory (a model may return a constant).
    """
    try:
        same, shares = _hold(call, first, second)
    except RuntimeError as error:  # PyTorch's CUDA-graph trees raise on the access itself
        _hold(eager, first, second)  # raises, too, if the candidate is not at fault
        return _make_check(Outcome.FAIL, f"an output cannot be read after the next call: {error}"[:300])
    if same and not shares:
        return _make_check(Outcome.PASS, "outputs stay as they are while later calls are made")
    stays, shared = _hold(eager, first, second)  # a model may return the very memory that its next call writes to
    if not same and stays:
        return _make_check(Outcome.FAIL, "an output held by the caller was overwritten by a later call")
    if shares and not shared:
        return _make_check(Outcome.FAIL, "answers of different calls lie in the same memory")
    return _make_check(Outcome.PASS, "outputs change as in eager")


def _make_check(outcome: Outcome, detail: str) -> Check:
    return Check(CheckName.RETAINED_OUTPUTS, outcome, detail)


def _hold(call: Callable[..., Any], first: Example, second: Example) -> tuple[bool, bool]:
    """Return whether the outputs for `first` stay the same while `second` is answered, and share its memory."""
    outputs = _run(call, first)
    copies = [t.detach().clone() for t in outputs]
    later = [*_run(call, second), *_run(call, second)]
    return all(pytree.equal(now, then) for now, then in zip(outputs, copies, strict=True)), _share(outputs, later)


def _run(call: Callable[..., Any], example: Example) -> list[torch.Tensor]:
    example = example.clone()
    with torch.no_grad():
        return leaves_of(call(*example.args, **example.kwargs)).tensors


def _share(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    places = {_place(t) for t in some if t.numel()} - {0}
    return any(_place(t) in places for t in others if t.numel())


def _place(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and other tensors without one storage
        return 0
