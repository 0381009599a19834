"""Another plan in the place of the one that answers, while calls go on."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from torchwise.errors import InputError
from torchwise.runtime.dispatch import Dispatcher
from torchwise.runtime.served import dispatcher_of
from torchwise.verify import Sensitivity, mismatch, observation_of
from torchwise.workload import Example, Workload


def swap(optimized: Any, dispatcher: Dispatcher) -> None:
    """Have `dispatcher` answer the calls that come from now on. Calls under way end as they began.

    One reference replaces another, which no thread can see half done. The former dispatcher frees itself when the last
    of its calls is over.

    Raises:
        InputError: it is nothing that Torchwise optimised.
    """
    if dispatcher_of(optimized) is None:
        raise InputError(f"it is a {type(optimized).__name__}, but only the result of torchwise.apply can be swapped")
    vars(optimized)["_torchwise"] = dispatcher


def answers_alike(dispatcher: Dispatcher, workload: Workload) -> str | None:
    """Call the plan once on each example, which makes it ready. Return how an answer differs from the original's."""
    with torch.no_grad():
        for example in workload.examples:
            original, candidate = _observe_call(workload.call, example), _observe_call(dispatcher, example)
            if dispatcher.statistics.original:
                return f"it does not answer the example inputs: {next(iter(dispatcher.statistics.sentences.values()))}"
            moved = Sensitivity(partial(_run_perturbed, workload.call, example))
            if found := mismatch(candidate, original, dispatcher.decision.error or 0.0, moved):
                return f"on the example inputs its answer differs from the original's: {found}"
    return None


def _run_perturbed(call: Any, example: Example, context: AbstractContextManager[Any]) -> dict[str, Any]:
    with context:
        return dict(_observe_call(call, example).leaves)


def _observe_call(call: Any, example: Example) -> Any:
    copy = example.clone()
    answer = call(*copy.args, **copy.kwargs)
    return observation_of(answer, (copy.args, dict(copy.kwargs)))
