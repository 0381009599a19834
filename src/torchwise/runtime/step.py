"""A training step that runs by a decided plan, with the attributes of the original step."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchwise.alerts import alert
from torchwise.compile import Signature, compile_plan, is_plain, signature_of
from torchwise.compile.recompiles import RecompileLimitError, Recompiles
from torchwise.compile.signature import opaque_leaves
from torchwise.compile.train_step import CompiledStep
from torchwise.errors import InputError
from torchwise.records import Decision
from torchwise.runtime.call_guard import CallGuard
from torchwise.runtime.dispatch import NOT_VERIFIED
from torchwise.runtime.fallback_reason import Fallback, FallbackReason, read_fallback
from torchwise.runtime.input_writes import OVERLAPS, InputSnapshot, InputWrites
from torchwise.runtime.signature_match import VerifiedInputs
from torchwise.runtime.staleness import stale_because
from torchwise.runtime.statistics import EAGER_DECISION, Fallbacks, Statistics
from torchwise.workload import Example
from torchwise.workload.identity import specify_inputs
from torchwise.workload.train_step import TrainStep, unwrap_ddp

logger = logging.getLogger("torchwise")

FIRST_CALLS = 2
"""Calls of a kind of batch by which something is compiled and then captured: before each, the state is copied."""
MADE_OF = ("model", "loss", "optimizer", "accumulate", "autocast", "scaler")
"""Attributes of a step that a plan reads once, when it is compiled."""
RECORDED = ("clip_norm", "clip_value")
"""Attributes that it reads on each step, unless the step is a graph."""


class OptimizedStep:
    """Takes training steps by a decided plan. The trained parameters and every attribute are the original's own.

    The plan takes a batch of verified shapes and dtypes. Any other is taken as written.

    If the plan fails on the first batch of its kind, state and batch are restored to those before that step. On later
    batches they stay as the plan left them. The batch is then taken as written, and so are all that follow. The failure
    is logged once and counted in `statistics`. All steps are also taken as written after a part of the original was set
    that the plan would not see, such as another loss.

    Args:
        original: the step as written.
        decision: the decision for it.
        refusal: why the plan may not be used at all, or None.
        borrow: without effect: the loss is always a tensor of its own.
        canary: must be None: a step cannot be taken twice to compare.

    Raises:
        InputError: a canary is requested.
    """

    def __init__(
        self,
        original: TrainStep,
        decision: Decision,
        refusal: Fallback | None = None,
        *,
        borrow: bool = False,  # noqa: ARG002
        canary: int | None = None,
    ) -> None:
        if canary is not None:
            raise InputError(f"canary is {canary}, but a training step cannot be taken twice to compare: leave it out")
        self.original = original
        self.decision = decision
        self.statistics = Statistics()
        self._refusal = refusal if refusal or not decision.plan.is_eager else EAGER_DECISION
        self._compiled: CompiledStep | None = None
        self._changes: list[CallGuard] = []  # of the model and the loss, since the plan was made of them
        self._fallbacks = Fallbacks(decision, "a training step is taken as written")
        self._recompiles = Recompiles(told=self._count_recompile, give_up=self._limit_reached, is_part=True)
        self._limit: RecompileLimitError | None = None
        self._verified = VerifiedInputs(decision.inputs, dynamic=False)
        self._writes = InputWrites(None, self._verified)  # to batches, as every step writes to the model
        self._taken: dict[Signature, int] = {}  # steps on batches of a verified kind, up to FIRST_CALLS
        names = (*MADE_OF, *RECORDED) if decision.plan.capture == "step" else MADE_OF
        self._made_of = {name: getattr(original, name) for name in names}

    def __call__(self, *batch: Any) -> torch.Tensor:
        """Take one training step, and return its loss, detached."""
        if self._refusal is None and (name := self._find_changed_attribute()) is not None:
            self._disable_plan(Fallback(FallbackReason.STEP_CHANGED, name))
        if self._refusal is not None:
            return self._as_written(self._refusal, batch)
        if (change := next(filter(None, (guard.find_change() for guard in self._changes)), None)) is not None:
            return self._as_written(change, batch)
        key = signature_of(batch, {})
        taken = self._taken.get(key)
        if taken is None:
            if not self._is_verified(batch):
                return self._as_written(NOT_VERIFIED, batch)
            if not self._has_verified_overlap(key, batch):
                loss: torch.Tensor = self._writes.learn_from_call(key, self._as_written_with, OVERLAPS, batch, {})
                return loss
            taken = 0
        undo = self._snapshot(batch) if taken < FIRST_CALLS else None
        try:
            loss = self._plan(batch).compute(*batch)
        except Exception as error:  # a plan may fail in any way: the step is taken, and the failure counted and logged
            return self._handle_failure(error, undo, batch)
        if undo is not None:
            self._taken[key] = taken + 1
        self.statistics.optimized += 1
        if self._limit is not None:
            self._stop_compiling(self._limit)
        self.original.advance()  # errors of the user's schedulers are no failure of the plan
        return loss

    def close(self) -> None:
        """Free the plan's memory, and restore the optimizer's own form. The next step compiles the plan again."""
        if self._compiled is not None:
            self._compiled.close()
        self._compiled, self._changes = None, []
        self._taken.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint, as `TrainStep.state_dict` does, that knows nothing of the plan."""
        return self.original.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`, of this or of the bare step."""
        self.original.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        """Return the original's attribute. Python only calls this for attributes that this object lacks."""
        if name == "original" or name.startswith("__"):  # while unpickling, or for ways to copy the original
            raise AttributeError(name)
        return getattr(self.original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the attribute on the original, whose steps read it, except this object's own attributes."""
        is_own = name.startswith("_") or name in ("original", "decision", "statistics") or hasattr(type(self), name)
        if is_own:
            super().__setattr__(name, value)
        else:
            setattr(self.original, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as the original and the decision. Code is compiled again, here, too."""
        self.close()
        return _rebuilt, (self.original, self.decision, self._refusal)

    def __repr__(self) -> str:
        return f"<OptimizedStep of {type(self.original.model).__name__}, plan: {self.decision.plan}>"

    def _plan(self, batch: tuple[Any, ...]) -> CompiledStep:
        if self._compiled is None:
            device = self.decision.workload.device
            plan, example = self.decision.plan, Example(batch)
            compiled = compile_plan(
                self.original, plan, example, device=device, mode="training", recompiles=self._recompiles
            ).call
            assert isinstance(compiled, CompiledStep), "a plan that is not eager changes something of a step"
            self._compiled = compiled
            called = (unwrap_ddp(self.original.model), self.original.loss)
            self._changes = [CallGuard(call, inference=False) for call in called if call is not None]
        return self._compiled

    def _is_verified(self, batch: tuple[Any, ...]) -> bool:
        if any(p.device.type != self.decision.workload.device for p in self.original.trained()):
            return False
        return self._verified.cover(specify_inputs(Example(batch))) and not opaque_leaves(batch)

    def _has_verified_overlap(self, key: Signature, batch: tuple[Any, ...]) -> bool:
        return self._writes.is_verified(key, specify_inputs(Example(batch)), batch, {})

    def _find_changed_attribute(self) -> str | None:
        """Return the name of a changed part that the plan does not read again."""
        made_of = self._made_of
        if self._compiled is not None:  # a plan in float16 implies a scaler
            made_of = {**made_of, "scaler": self._compiled.parts.scaler}
        for name, part in made_of.items():
            now = getattr(self.original, name)
            if now is not part and not (is_plain(now) and type(now) is type(part) and now == part):
                return name
        return None

    def _snapshot(self, batch: tuple[Any, ...]) -> Callable[[], None]:
        """Copy the state and the batch, if there is memory for it, and the random numbers."""
        state: Callable[[], None] | None = None
        with contextlib.suppress(torch.OutOfMemoryError, MemoryError):
            state = self.original.snapshot()
        inputs = InputSnapshot(None, batch, {})  # a model may write to them
        numbers = torch.get_rng_state()
        on_gpu = torch.cuda.get_rng_state() if self.decision.workload.device == "cuda" else None

        def restore() -> None:
            if state is not None:
                state()
            inputs()
            torch.set_rng_state(numbers)
            if on_gpu is not None:
                torch.cuda.set_rng_state(on_gpu)

        return restore

    def _handle_failure(
        self, error: Exception, undo: Callable[[], None] | None, batch: tuple[Any, ...]
    ) -> torch.Tensor:
        """Take the step as written. If that raises too, the fault was the batch's and not the plan's."""
        traceback.clear_frames(error.__traceback__)  # which hold the plan's results so far
        if undo is not None:
            undo()  # while the optimizer has the form in which the state was copied
        self.close()
        failed = Fallback(FallbackReason.PLAN_FAILED, type(error).__name__)
        self._fallbacks.note_said(failed)  # by the lines below
        loss = self._as_written(failed, batch)
        self._disable_plan(failed, f": {error}")
        self.statistics.count_failure(error)
        self.statistics.opened += 1
        logger.debug("torchwise: how it failed", exc_info=error)
        return loss

    def _disable_plan(self, fallback: Fallback, details: str = "") -> None:
        self.close()
        self._refusal = fallback
        self._fallbacks.note_said(fallback)
        logger.warning("torchwise: training goes on as written, because %s%s", fallback, details)

    def _as_written_with(self, fallback: Fallback, batch: tuple[Any, ...], _named: Mapping[str, Any]) -> torch.Tensor:
        return self._as_written(fallback, batch)

    def _as_written(self, fallback: Fallback, batch: tuple[Any, ...]) -> torch.Tensor:
        self._fallbacks.count(fallback, self.statistics)
        return self.original(*batch)

    def _count_recompile(self, what: str) -> None:
        self.statistics.recompiles += 1
        logger.info("torchwise: plan %s is compiled again for a batch like one before: %s", self.decision.plan, what)

    def _limit_reached(self, error: RecompileLimitError) -> None:
        self._limit = error  # the step is under way, and taken by the plan to its end

    def _stop_compiling(self, error: RecompileLimitError) -> None:
        """Take the steps that follow as written."""
        self._limit = None
        fallback = Fallback(FallbackReason.RECOMPILE_LIMIT, error.reason)
        self._disable_plan(fallback)
        plan, count = str(self.decision.plan), self.statistics.recompiles
        reason = fallback.reason.value
        alert(
            "recompile_limit",
            f"plan {plan}: {error}",
            plan=plan,
            reason=reason,
            sentence=error.reason,
            recompiles=count,
        )


def _rebuilt(original: TrainStep, decision: Decision, refusal: Fallback | str | None = None) -> OptimizedStep:
    stale = stale_because(original, decision)
    effective = Fallback(FallbackReason.STALE_DECISION, stale) if stale else read_fallback(refusal)
    return OptimizedStep(original, decision, effective)
