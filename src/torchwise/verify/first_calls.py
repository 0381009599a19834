"""Check first calls: a program also uses the answers that a plan gives while it compiles, and they may be wrong.

Compiled complex `linalg.pinv` is such a case (torch 2.13, https://github.com/pytorch/pytorch/issues/198118): its first
call runs in a context that changes the answers of operators.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.observe import Observation, observation_of
from torchwise.verify.spot_check import differs


class FirstAnswer:
    """A call that keeps its first answer, in the host's memory.

    Attributes:
        observation: the observation of that answer, or None before it.
        at: the time of that answer.

    Args:
        call: the call to make.
        observe: makes an observation of an answer, by default of its outputs alone.
    """

    def __init__(self, call: Callable[[], Any], observe: Callable[[Any], Observation] | None = None) -> None:
        self.observation: Observation | None = None
        self.at = math.inf
        self._call = call
        self._observe = observe or _observe_outputs

    def __call__(self) -> Any:
        """Call it."""
        answer = self._call()
        if self.observation is None:
            observation, self.at = self._observe(answer), time.monotonic()
            self.observation = replace(
                observation, leaves=tuple((name, _to_host(leaf)) for name, leaf in observation.leaves)
            )
        return answer


def very_first(answers: Sequence[FirstAnswer]) -> tuple[int, Observation] | None:
    """Return the number and the answer of the earliest of these calls, or None if none was answered."""
    answered = [
        (answer.at, number, answer.observation)
        for number, answer in enumerate(answers)
        if answer.observation is not None
    ]
    return min(answered, key=lambda one: one[0])[1:] if answered else None


def check_first(first: Observation, later: Observation, error: float) -> Check:
    """Compare the answer of a first call with that of a later one, which was found right.

    Args:
        first: the first call's answer.
        later: a later call's answer, on the same inputs and from the same state.
        error: the later answer's error.
    """
    known = dict(later.leaves)
    for name, leaf in first.leaves:
        if found := differs(leaf, known.get(name), error):
            return Check(
                CheckName.FIRST_CALL, Outcome.FAIL, f"of the first call {name} {found}, of later ones it is right"
            )
    return Check(CheckName.FIRST_CALL, Outcome.PASS, "the first call answers as later ones do")


def _observe_outputs(answer: Any) -> Observation:
    return observation_of(answer, ())


def _to_host(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf
