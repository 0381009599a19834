"""Find out whether a candidate that was timed computes each answer anew, and still answers right.

A candidate that keeps answers by value passes every comparison. But a call on values that it has seen is then faster
than one on new values, which it is not for the reference.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.observe import observation_of
from torchwise.verify.spot_check import mismatch
from torchwise.verify.stochastic import is_stochastic
from torchwise.workload import pytree
from torchwise.workload.module_state import kept_state
from torchwise.workload.workload import Example

ROUNDS, REPEATS = 15, 8
"""Values to time, and calls on each: an answer may be kept only once its values have come several times."""
LEAST_ROUNDS, MAX_S = 3, 10.0
"""Values to time in any case, and seconds after which there are no more."""
KEPT, USUAL = 3.0, 1.5
"""How many times as fast a repeated call must be to count as a kept answer, and may be for the reference."""
LEAST_S = 20e-6
"""Seconds that a repeated call must save at least: less is chance."""


def check_timed_answers(
    candidate: Callable[..., Any],
    reference: Callable[..., Any],
    fresh: Sequence[Example],
    device: str,
    verified_error: float = 0.0,
    *,
    timed: Example | None = None,
) -> Check:
    """Compare answers on inputs that were not timed, and the times of new and of repeated values.

    `perf_counter` is Python's own, taken before the candidate was loaded. `verified_error` is as for `mismatch`. Random
    answers are not compared. Kept answers are looked for with values like those of `timed`, or of the first fresh one.
    """
    is_random = is_stochastic(lambda: _answer(reference, fresh[0]), reference)[0]
    for example in () if is_random else fresh:
        if (problem := _compare(candidate, reference, example, verified_error)) is not None:
            return Check(CheckName.TIMED_ANSWERS, Outcome.FAIL, f"after it was timed, {problem}")
    ratios = [_time_repeats(call, timed or fresh[0], device) for call in (candidate, reference)]
    (own, saved_s), (usual, _) = ratios
    if own > KEPT and usual < USUAL and saved_s > LEAST_S:
        detail = f"values that it has seen take {1 / own:.2g} of the time of new ones, in the reference {1 / usual:.2g}"
        return Check(CheckName.TIMED_ANSWERS, Outcome.FAIL, f"it keeps answers: {detail}")
    return Check(CheckName.TIMED_ANSWERS, Outcome.PASS, "new inputs are answered right after timing, and computed anew")


def _answer(call: Callable[..., Any], example: Example) -> Any:
    copy = example.clone()
    with torch.no_grad():
        return call(*copy.args, **copy.kwargs)


def _compare(
    candidate: Callable[..., Any], reference: Callable[..., Any], example: Example, verified_error: float
) -> str | None:
    found = []
    for call in (candidate, reference):
        with kept_state(call):
            found.append(observation_of(_answer(call, example), ()))
    return mismatch(found[0], found[1], verified_error)


def _time_repeats(call: Callable[..., Any], example: Example, device: str) -> tuple[float, float]:
    """Return how many times as fast calls on repeated values are as those on new ones, and the seconds saved."""
    copy = example.clone()
    tensors = [t.detach() for t in copy.tensors() if t.numel() > 1 and t.layout is torch.strided]

    def time_call() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        began = perf_counter()
        call(*copy.args, **copy.kwargs)
        if device == "cuda":
            torch.cuda.synchronize()
        return perf_counter() - began

    start = perf_counter()
    times: dict[bool, list[float]] = {True: [], False: []}
    with kept_state(call), torch.no_grad():
        for number in range(ROUNDS):
            for tensor in tensors:  # rolled by a number of places that grows, so that no values come twice
                base = pytree.base_of(tensor)
                base.copy_(base.flatten().roll(number + 1).view(base.shape))
            took = [time_call() for _ in range(REPEATS)]
            times[True].append(took[0])
            times[False].append(took[-1])
            if number + 1 >= LEAST_ROUNDS and perf_counter() - start > MAX_S:
                break
    new, repeated = statistics.median(times[True]), statistics.median(times[False])
    return new / max(repeated, 1e-9), new - repeated
