"""Outputs held across calls: an answer must not change when the next call is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchwise.records import Check, Outcome
from torchwise.verify.leaves import leaves_of
from torchwise.workload import trees
from torchwise.workload.workload import Example

if TYPE_CHECKING:
    import torch


def check_held(call: Callable[..., Any], eager: Callable[..., Any], first: Example, second: Example) -> Check:
    """Hold the outputs for `first` while `second` is answered twice; they must stay as they were.

    Where both inputs are alike, values would not tell, so memory shared between the answers counts too, unless eager's
    answers share theirs (a model may return a constant).
    """

    held = _run(call, first)
    kept = [t.detach().clone() for t in held]
    try:
        later = [*_run(call, second), *_run(call, second)]
        same = all(trees.equal(now, then) for now, then in zip(held, kept, strict=True))
    except RuntimeError as error:  # PyTorch's CUDA-graph trees raise on the access itself
        return Check("held outputs", Outcome.FAIL, f"an output cannot be read after the next call: {error}"[:300])
    if not same:
        return Check("held outputs", Outcome.FAIL, "an output held by the caller was overwritten by a later call")
    if _share(held, later) and not _share(_run(eager, first), _run(eager, second)):
        return Check("held outputs", Outcome.FAIL, "answers of different calls lie in the same memory")
    return Check("held outputs", Outcome.PASS, "outputs stay as they are while later calls are made")


def _run(call: Callable[..., Any], example: Example) -> list[torch.Tensor]:
    import torch

    example = example.clone()
    with torch.no_grad():
        return leaves_of(call(*example.args, **example.kwargs)).tensors


def _share(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    places = {t.untyped_storage().data_ptr() for t in ours if t.numel()}
    return any(t.untyped_storage().data_ptr() in places for t in theirs if t.numel())
