"""What an experiment needs to know of a candidate: the contract of plans, and of contenders of benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torchwise.trial.harness import Harness
from torchwise.trial.job import Job


class Candidate(Protocol):
    """Something that answers in the model's place."""

    @property
    def precision(self) -> str:
        """The precision of its plan, which sets the noise floor, or "native"."""
        ...

    @property
    def may_overwrite(self) -> bool:
        """Whether its answers are verified as copies, because later calls may overwrite them."""
        ...

    def build(self, call: Callable[..., Any], harness: Harness) -> Callable[..., Any]:
        """Return a callable in place of the model, or of a copy of the training step, which it may change."""
        ...

    def build_reproducible(self, job: Job, harness: Harness, call: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return a form of it that draws eager's own random numbers, or None. `call` is the candidate, as built."""
        ...

    def substitute(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model with the operators that the candidate has in place of its own, or the model itself."""
        ...
