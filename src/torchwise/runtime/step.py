"""A training step that runs by a decided plan, with the attributes of the original step."""

from __future__ import annotations

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchwise.compile import CompiledPlan, Signature, signature_of
from torchwise.compile.cuda_graphs.compile_freeze import FrozenError, forbid_compile
from torchwise.compile.recompiles import RecompileLimitError, Recompiles
from torchwise.compile.signature import forget_oldest, is_equal, opaque_leaves
from torchwise.compile.train_step import CompiledStep
from torchwise.errors import InputError
from torchwise.records import Decision
from torchwise.runtime.call_guard import CallGuard, VerifiedInputs
from torchwise.runtime.circuit_breaker import FROZEN_CHANGED
from torchwise.runtime.dispatch import UNREADABLE
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.input_writes import OVERLAPS, InputSnapshot, InputWrites
from torchwise.runtime.missed_inputs import MissedInputs
from torchwise.runtime.monitors import Latency, SpeedMonitor
from torchwise.runtime.served import (
    FROZEN,
    NOT_VERIFIED,
    LivePlan,
    Recipe,
    Served,
    Wrapper,
    rebuild,
    refusal_of_copy,
)
from torchwise.runtime.statistics import MIN_STEPS, Statistics
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
FAILED_ON_RANK = (
    "the plan failed in this step, on this rank alone: the ranks could not take it again as written together"
)


class StepDispatcher(Served):
    """Takes a training step by the plan if it was verified for such a batch, and as written otherwise.

    Among the ranks of a job, a plan is taken on all ranks or on none. Then a failure of the plan fails the step, as one
    rank cannot repeat it alone, and the plan takes only the kind of batches that it was told to `accept`.
    """

    is_step = True

    def __init__(
        self, original: TrainStep, decision: Decision, refusal: Fallback | None = None, *, is_ranked: bool = False
    ) -> None:
        super().__init__(
            original, decision, refusal, happens="a training step is taken as written", min_calls=MIN_STEPS
        )
        self.original: TrainStep = original
        self._is_ranked = is_ranked
        recompiles = Recompiles(
            told=self._count_recompile, give_up=self._note_limit, is_part=True, price=self.make_price()
        )
        self._plan = LivePlan(original, decision, recompiles)
        # Of the model and the loss, since the plan was made of them.
        self._changes: list[Callable[[], Fallback | None]] = []
        self._limit: RecompileLimitError | None = None
        self._would_compile = False  # amid a step, while it is frozen
        self._latency = Latency(decision.workload.device, SpeedMonitor(decision))
        self._verified = VerifiedInputs(decision.inputs, dynamic=False)
        self._missed = MissedInputs(self._verified)
        self._writes = InputWrites(None, self._verified)  # to batches, as every step writes to the model
        self._taken: dict[Signature, int] = {}  # steps on batches of a verified kind, up to FIRST_CALLS
        names = (*MADE_OF, *RECORDED) if decision.plan.capture == "step" else MADE_OF
        self._made_of = {name: getattr(original, name) for name in names}

    def can_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        """Return why the original would take a step on such a batch now, or None if the plan may.

        Before the ranks of a job have met, no batch counts as verified, though the plan may take the step at which they
        meet.
        """
        del kwargs
        if (change := self._find_change()) is not None:
            return change
        try:
            taken = self._taken.get(signature_of(args, {}))
        except Exception:  # as in a call
            return UNREADABLE
        return self._find_new(args) if taken is None else self._find_frozen(taken)

    def __call__(self, *batch: Any) -> torch.Tensor:
        """Take one training step, and return its loss, detached."""
        loss: torch.Tensor
        if (change := self._find_change()) is not None:
            if change.reason is FallbackReason.STEP_CHANGED and change is not self._refusal:
                self._disable_plan(change)
            loss = self.answer_by_original(change, batch, {})
            return loss
        try:
            key = signature_of(batch, {})
            taken = self._taken.get(key)
        except Exception:  # a part of a batch may be of any kind, and fail when it is described
            loss = self.answer_by_original(UNREADABLE, batch, {})
            return loss
        fallback = self._find_new(batch) if taken is None else self._find_frozen(taken)
        if fallback is not None:
            return self._take_as_written(fallback, key, batch)
        taken = taken or 0
        undo = self._snapshot(batch) if taken < FIRST_CALLS else None
        start = time.perf_counter()
        try:
            loss = self._compute(batch, is_steady=undo is None)
        except Exception as error:  # a plan may fail in any way: the step is taken, and the failure counted and logged
            return self._handle_failure(error, undo, batch)
        if undo is not None:
            self._taken[key] = taken + 1
            forget_oldest(self._taken)
            self.statistics.first_calls += 1
            self.statistics.first_calls_s += time.perf_counter() - start
        self.statistics.optimized += 1
        if self._limit is not None:
            self._stop_compiling(self._limit)
        self.original.advance()  # errors of the user's schedulers are no failure of the plan
        return loss

    def _compute(self, batch: tuple[Any, ...], *, is_steady: bool) -> torch.Tensor:
        """Take a step by the plan, and time a sample of those that compile nothing."""
        compute = self.compile(batch).compute
        if self.is_frozen:
            compute = forbid_compile(compute)
        if is_steady and not self.statistics.optimized % self._latency.every:
            timed: torch.Tensor = self._latency.time_call(compute, batch, {}, self.statistics.latency)
            return timed
        return compute(*batch)

    def _take_as_written(self, fallback: Fallback, key: Signature, batch: tuple[Any, ...]) -> torch.Tensor:
        loss: torch.Tensor
        if fallback is OVERLAPS:
            loss = self._writes.learn_from_call(key, self.answer_by_original, OVERLAPS, batch, {})
            return loss
        if fallback is NOT_VERIFIED:
            self.log_unverified(logging.WARNING, batch, {})
            self._missed.note(key, batch, {}, self.statistics)
        loss = self.answer_by_original(fallback, batch, {})
        return loss

    def compile(self, batch: tuple[Any, ...]) -> CompiledStep:
        """Return the compiled step."""
        before = self._plan.compiled
        plan = self._plan.compile(batch, {})
        compiled = plan.call
        assert isinstance(compiled, CompiledStep), "a plan that is not eager changes something of a step"
        if plan is not before:
            called = (unwrap_ddp(self.original.model), self.original.loss)
            self._changes = [CallGuard(call, inference=False).make_check() for call in called if call is not None]
        return compiled

    def accept(self, batch: tuple[Any, ...]) -> None:
        """Take batches of this kind by the plan from now on, and no others: its first steps were taken elsewhere."""
        self._taken = {signature_of(batch, {}): FIRST_CALLS}

    def find_unverified(self, batch: tuple[Any, ...]) -> Fallback | None:
        """Return why the plan was not verified for such a batch, or None if it was."""
        if any(p.device.type != self.decision.workload.device for p in self.original.trained()):
            return NOT_VERIFIED
        spec = specify_inputs(Example(batch))
        if not self._verified.cover(spec) or opaque_leaves(batch):
            return NOT_VERIFIED
        return None if self._writes.is_verified(signature_of(batch, {}), spec, batch, {}) else OVERLAPS

    def set_original(self, original: TrainStep) -> None:
        """Take the steps that follow as this one says. The plan goes on if both are made of the same parts."""
        self.original = self._answer_instead = self._plan.original = original

    @property
    def active_plan(self) -> CompiledPlan | None:
        """The compiled plan, or None before the first step that it takes and after it was freed."""
        return self._plan.compiled

    def forget(self) -> None:
        """Free the plan's memory, and restore the optimizer's own form. The next step compiles the plan again."""
        self._plan.forget()
        self._changes = []
        self._taken.clear()

    def get_recipe(self) -> Recipe:
        """Return how a copy makes it again. Code is compiled again, here, too."""
        self.forget()
        return self.restore, (self.original, self.decision, self._refusal)

    @classmethod
    def restore(cls, original: TrainStep, decision: Decision, refusal: Fallback | str | None = None) -> StepDispatcher:
        """Make it again in a copy or from a pickle."""
        return cls(original, decision, refusal_of_copy(original, decision, refusal))

    def _find_change(self) -> Fallback | None:
        """Return why the plan takes no step at all now: it is refused, or a part changed since it was made of them."""
        if self._refusal is not None:
            return self._refusal
        if (name := self._find_changed_attribute()) is not None:
            return Fallback(FallbackReason.STEP_CHANGED, name)
        return next(filter(None, (find_change() for find_change in self._changes)), None)

    def _find_new(self, batch: tuple[Any, ...]) -> Fallback | None:
        """Return why the plan does not take a kind of batch that it has not taken before."""
        unverified = NOT_VERIFIED if self._is_ranked else self.find_unverified(batch)
        return unverified or (FROZEN if self.is_frozen else None)

    def _find_frozen(self, taken: int) -> Fallback | None:
        """Return why the plan, if it is frozen, does not take a kind of batch that it has taken so many times."""
        if not self.is_frozen:
            return None
        return FROZEN_CHANGED if self._would_compile else FROZEN if taken < FIRST_CALLS else None

    def set_frozen(self, frozen: bool) -> None:
        """Say whether nothing more may be compiled and captured."""
        super().set_frozen(frozen)
        self._would_compile = False

    def _find_changed_attribute(self) -> str | None:
        """Return the name of a changed part that the plan does not read again."""
        made_of = self._made_of
        if self._plan.compiled is not None:  # a plan in float16 implies a scaler
            made_of = {**made_of, "scaler": self._plan.compiled.call.parts.scaler}  # type: ignore[attr-defined]
        for name, part in made_of.items():
            now = getattr(self.original, name)
            if now is not part and not is_equal(now, part):
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
        if self._is_ranked:
            self.statistics.count_failure(error)
            error.add_note(f"torchwise: {FAILED_ON_RANK}; without Torchwise it may not fail")
            raise error
        if isinstance(error, FrozenError) and undo is None:  # a half-taken step, as after a failure: once is enough
            self._would_compile = True
            loss: torch.Tensor = self.answer_by_original(FROZEN_CHANGED, batch, {})
            return loss
        traceback.clear_frames(error.__traceback__)  # which hold the plan's results so far
        if undo is not None:
            undo()  # while the optimizer has the form in which the state was copied
        self.forget()
        failed = Fallback(FallbackReason.PLAN_FAILED, type(error).__name__)
        self._fallbacks.note_said(failed)  # by the lines below
        loss = self.answer_by_original(failed, batch, {})
        self._disable_plan(failed, f": {error}")
        self.statistics.count_failure(error)
        self.statistics.opened += 1
        logger.debug("torchwise: how it failed", exc_info=error)
        return loss

    def _disable_plan(self, fallback: Fallback, details: str = "") -> None:
        self.close(fallback)
        self._fallbacks.note_said(fallback)
        logger.warning("torchwise: training goes on as written, because %s%s", fallback, details)

    def _count_recompile(self, what: str) -> None:
        self.statistics.recompiles += 1
        logger.info("torchwise: plan %s is compiled again for a batch like one before: %s", self.decision.plan, what)

    def _note_limit(self, error: RecompileLimitError) -> None:
        self._limit = error  # the step is under way, and taken by the plan to its end

    def _stop_compiling(self, error: RecompileLimitError) -> None:
        """Take the steps that follow as written. A rank goes on with the plan, as it cannot stop alone."""
        self._limit = None
        if self._is_ranked:
            ending = "; it goes on compiling, as one rank cannot stop alone"
            self._fallbacks.tell_limit(error, self.statistics, ending)
            return
        self._disable_plan(Fallback(FallbackReason.RECOMPILE_LIMIT, error.reason))
        self._fallbacks.alert_limit(error, self.statistics)


class OptimizedStep(Wrapper):
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
        self._hold(StepDispatcher(original, decision, refusal))

    def __call__(self, *batch: Any) -> torch.Tensor:
        """Take one training step, and return its loss, detached."""
        loss: torch.Tensor = self._dispatcher(*batch)
        return loss

    @property
    def original(self) -> TrainStep:
        """The step as written."""
        step: TrainStep = self._dispatcher.original
        return step

    @original.setter
    def original(self, step: TrainStep) -> None:
        self._dispatcher.set_original(step)

    @property
    def statistics(self) -> Statistics:
        """The counts of the steps so far."""
        return super().statistics

    @statistics.setter
    def statistics(self, statistics: Statistics) -> None:
        self._dispatcher.statistics = statistics

    def close(self) -> None:
        """Free the plan's memory, and restore the optimizer's own form. The next step compiles the plan again."""
        self._dispatcher.forget()

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint, as `TrainStep.state_dict` does, that knows nothing of the plan."""
        return self.original.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a result of `state_dict`, of this or of the bare step."""
        self.original.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        """Return the original's attribute. Python only calls this for attributes that this object lacks."""
        if name in ("_torchwise", "_dispatcher") or name.startswith("__"):  # before there is one, or to copy it
            raise AttributeError(name)
        return getattr(self.original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the attribute on the original, whose steps read it, except this object's own attributes."""
        if name.startswith("_") or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(self.original, name, value)

    def __repr__(self) -> str:
        return f"<OptimizedStep of {type(self.original.model).__name__}, {self._dispatcher.describe()}>"


def _rebuilt(*parts: Any) -> Any:
    """Make a step again from a pickle of an earlier version."""
    return rebuild(OptimizedStep, StepDispatcher.restore, parts)
