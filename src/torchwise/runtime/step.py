"""A training step that runs by a decided plan, and looks like the step it was made from."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchwise.errors import InputError
from torchwise.realize import Signature, realize, signature_of
from torchwise.realize.step import RealizedStep
from torchwise.records import Decision
from torchwise.runtime.dispatch import NOT_PROVEN
from torchwise.runtime.stale import stale_because
from torchwise.runtime.statistics import Statistics
from torchwise.workload import Example
from torchwise.workload.identity import describe_example
from torchwise.workload.step import TrainStep

logger = logging.getLogger("torchwise")

FIRST_CALLS = 2
"""Calls of a kind of batch by which something is compiled and then captured: before each, the state is copied."""


class OptimizedStep:
    """Takes training steps by a decided plan; what is trained is the original's own, and so is every attribute.

    The plan takes a batch of the shapes and dtypes it was proven on; any other is taken as written. Where the plan
    fails, the state is as before that step where it is the first of its kind, or else as the plan left it; the batch is
    taken as written, and so are all that follow: what failed is logged once and counted in `statistics`.

    Args:
        original: the step as written.
        decision: what was decided for it.
        refusal: why the plan may not be used at all, if that is so.
        borrow: without effect: the loss is always a tensor of its own.
        canary: must be None: a step cannot be taken twice to compare.

    Raises:
        InputError: a canary is asked for.
    """

    def __init__(
        self,
        original: TrainStep,
        decision: Decision,
        refusal: str | None = None,
        *,
        borrow: bool = False,  # noqa: ARG002
        canary: int | None = None,
    ) -> None:
        if canary is not None:
            raise InputError(f"canary is {canary}, but a training step cannot be taken twice to compare: leave it out")
        self.original = original
        self.decision = decision
        self.statistics = Statistics()
        self._refusal = refusal if refusal or not decision.plan.is_eager else "the decision is to stay with eager"
        self._realized: RealizedStep | None = None
        self._taken: dict[Signature, int] = {}  # steps on batches of a proven kind, up to FIRST_CALLS; -1 for others

    def __call__(self, *batch: Any) -> torch.Tensor:
        """Take one training step, and return its loss, detached."""
        if self._refusal is not None:
            return self._as_written(self._refusal, batch)
        key = signature_of(batch, {})
        taken = self._taken.get(key)
        if taken is None:
            is_proven = describe_example(Example(batch)) in self.decision.inputs
            taken = self._taken[key] = 0 if is_proven else -1
        if taken < 0:
            return self._as_written(NOT_PROVEN, batch)
        undo = self._snapshot() if taken < FIRST_CALLS else None
        try:
            loss = self._plan(batch).compute(*batch)
        except Exception as error:  # whatever the plan does, the step is taken; the failure is counted and logged
            return self._failed(error, undo, batch)
        if undo is not None:
            self._taken[key] = taken + 1
        self.statistics.optimized += 1
        self.original.advance()  # what the user's schedulers raise is no failure of the plan
        return loss

    def close(self) -> None:
        """Free what the plan holds, and give the optimizer its own form back; the next step makes the plan anew."""
        if self._realized is not None:
            self._realized.close()
        self._realized = None
        self._taken.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint, as `TrainStep.state_dict` does, that knows nothing of the plan."""
        return self.original.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned, of this or of the bare step."""
        self.original.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        """Return the original's attribute; only asked for what this object has not."""
        if name == "original":  # while unpickling, before there is one
            raise AttributeError(name)
        return getattr(self.original, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as the original and the decision: compiled code is made anew, here, too."""
        self.close()
        return _rebuilt, (self.original, self.decision, self._refusal)

    def __repr__(self) -> str:
        return f"<OptimizedStep of {type(self.original.model).__name__}, plan: {self.decision.plan}>"

    def _plan(self, batch: tuple[Any, ...]) -> RealizedStep:
        if self._realized is None:
            device = self.decision.workload.device
            made = realize(self.original, self.decision.plan, Example(batch), device=device, mode="training").call
            assert isinstance(made, RealizedStep), "a plan that is not eager changes something of a step"
            self._realized = made
        return self._realized

    def _snapshot(self) -> Callable[[], None]:
        """Copy the state, where there is memory for it, and the random numbers."""
        state: Callable[[], None] | None = None
        with contextlib.suppress(torch.OutOfMemoryError, MemoryError):
            state = self.original.snapshot()
        numbers = torch.get_rng_state()
        on_gpu = torch.cuda.get_rng_state() if self.decision.workload.device == "cuda" else None

        def undo() -> None:
            if state is not None:
                state()
            torch.set_rng_state(numbers)
            if on_gpu is not None:
                torch.cuda.set_rng_state(on_gpu)

        return undo

    def _failed(self, error: Exception, undo: Callable[[], None] | None, batch: tuple[Any, ...]) -> torch.Tensor:
        """Take the step as written; where that raises too, the fault was the batch's, and is not the plan's."""
        traceback.clear_frames(error.__traceback__)  # which hold what the plan had computed so far
        if undo is not None:
            undo()  # while the optimizer has the form in which the state was copied
        self.close()
        reason = f"the plan failed ({type(error).__name__})"
        loss = self._as_written(reason, batch)
        self._refusal = reason
        self.statistics.failures[type(error).__name__] += 1
        self.statistics.opened += 1
        logger.warning("torchwise: training goes on as written, because %s: %s", self._refusal, error)
        logger.debug("torchwise: how it failed", exc_info=error)
        return loss

    def _as_written(self, reason: str, batch: tuple[Any, ...]) -> torch.Tensor:
        self.statistics.original[reason] += 1
        return self.original(*batch)


def _rebuilt(original: TrainStep, decision: Decision, refusal: str | None = None) -> OptimizedStep:
    stale = stale_because(original, decision)
    return OptimizedStep(original, decision, f"the decision is stale ({stale})" if stale else refusal)
