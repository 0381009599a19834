"""First calls: what a plan answers while it compiles is served too, and need not be what it answers from then on.

Compiled complex `linalg.pinv` is such a case (torch 2.13, https://github.com/pytorch/pytorch/issues/198118): its first
call runs where operators answer otherwise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torchwise.records import Check, Outcome
from torchwise.verify.observe import Observation, observation_of
from torchwise.verify.spot import differs


class FirstAnswer:
    """A call that keeps what it answered the first time, in the host's memory.

    Attributes:
        seen: what that was; None before.
        at: when that was.

    Args:
        call: what is called.
        look: makes an observation of an answer; None for what it returned.
    """

    def __init__(self, call: Callable[[], Any], look: Callable[[Any], Observation] | None = None) -> None:
        self.seen: Observation | None = None
        self.at = math.inf
        self._call = call
        self._look = look or _of_outputs

    def __call__(self) -> Any:
        """Call it."""
        answer = self._call()
        if self.seen is None:
            seen, self.at = self._look(answer), time.monotonic()
            self.seen = replace(seen, leaves=tuple((name, _on_host(leaf)) for name, leaf in seen.leaves))
        return answer


def very_first(answers: Sequence[FirstAnswer]) -> tuple[int, Observation] | None:
    """Return which of these calls was made first of all, and what it answered; None where none was made."""
    made = [(answer.at, number, answer.seen) for number, answer in enumerate(answers) if answer.seen is not None]
    return min(made, key=lambda one: one[0])[1:] if made else None


def check_first(first: Observation, later: Observation, error: float) -> Check:
    """Hold the answer of a first call against that of a later one, which was found right.

    Args:
        first: what the first call answered.
        later: what a later one did, on the same inputs and from the same state.
        error: its error.
    """
    known = dict(later.leaves)
    for name, leaf in first.leaves:
        if found := differs(leaf, known.get(name), error):
            return Check("first call", Outcome.FAIL, f"of the first call {name} {found}, of later ones it is right")
    return Check("first call", Outcome.PASS, "the first call answers as later ones do")


def _of_outputs(answer: Any) -> Observation:
    return observation_of(answer, ())


def _on_host(leaf: Any) -> Any:
    import torch

    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf
