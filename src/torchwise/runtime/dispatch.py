"""Choose who answers a call: the plan, if it was verified for such a call, or else the original."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import is_autocast_enabled, is_grad_enabled

from torchwise.alerts import alert
from torchwise.compile import Backend, CompiledPlan, Signature, signature_of
from torchwise.compile.cuda_graphs.compile_freeze import FrozenError, forbid_compile
from torchwise.compile.cuda_graphs.graph_pool import collect_garbage
from torchwise.compile.guards.varying_values import ChangedModelError
from torchwise.compile.recompiles import RecompileLimitError, Recompiles
from torchwise.compile.signature import forget_oldest
from torchwise.errors import InputError, UnsupportedError, pop_traceback
from torchwise.records import Decision
from torchwise.runtime.call_guard import CallGuard, Known, VerifiedInputs, is_of, may_need_gradients, recognize_by
from torchwise.runtime.circuit_breaker import FROZEN_CHANGED, PlanCircuits
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.input_writes import OVERLAPS, InputSnapshot, InputWrites, OverlapError, TensorSnapshot
from torchwise.runtime.missed_inputs import Missed, MissedInputs
from torchwise.runtime.monitors import Canary, Latency, SpeedMonitor
from torchwise.runtime.served import (
    FREED,
    FROZEN,
    NOT_VERIFIED,
    LivePlan,
    Recipe,
    Served,
    UnjudgedWeightsError,
    refusal_of_copy,
)
from torchwise.runtime.staleness import find_other_weights
from torchwise.runtime.statistics import Statistics
from torchwise.workload import Example
from torchwise.workload.identity import specify_inputs

logger = logging.getLogger("torchwise")

UNREADABLE = Fallback(FallbackReason.INPUTS_UNREADABLE)


class Dispatcher(Served):
    """Answers calls by a decided plan if it is verified for them, and by the original otherwise.

    The plan answers a call whose inputs have a verified signature (for a plan with dynamic shapes: the same dtypes and
    ranks), in the grad mode of the verification. It is compiled on the first such call.

    If the plan fails, the original answers that very call, which is logged once. After some failures it answers calls
    of that signature for a time, and then the plan is tried again (`CircuitBreaker`). If the GPU ran out of memory, the
    plan's memory is freed, and the original answers all calls for a time.

    Args:
        original: the module or function.
        decision: the decision for it.
        refusal: why the plan may not answer at all, or None.
        borrow: whether a captured plan returns memory that its next call overwrites.
        canary: calls per comparison with the original, or None for no comparison.
        statistics: counts calls, if several dispatchers share it.
        backend: makes the compiled part of the plan, in place of its own backend (`compile.aot`).
        answer_instead: answers the calls that the plan does not, in place of the original.
        find_change: finds a change of the model or around the call, by default with a `CallGuard`.
        find_unlike: returns why the plan does not answer a call of a new signature, even if it was verified for it.
        learn: told of the calls on inputs that the plan was not verified on, if too many are of other sizes.

    Raises:
        InputError: `canary` is no number of calls, or the plan is one for training, whose gradients no comparison sees.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        decision: Decision,
        refusal: Fallback | None = None,
        *,
        borrow: bool = False,
        canary: int | None = None,
        statistics: Statistics | None = None,
        backend: Backend | None = None,
        answer_instead: Callable[..., Any] | None = None,
        find_change: Callable[[], Fallback | None] | None = None,
        find_unlike: Callable[[tuple[Any, ...], dict[str, Any]], Fallback | None] | None = None,
        learn: Callable[[tuple[Missed, ...]], None] | None = None,
    ) -> None:
        super().__init__(original, decision, refusal, statistics, answer_instead=answer_instead)
        self.borrow = borrow
        self._said_refusal: Fallback | None = None  # the refusal that calls were counted and logged for
        self._find_unlike = find_unlike
        self._calls: dict[Signature, Callable[..., Any]] = {}
        self._last: Known | None = None  # for the last signature that a plan answered at length
        self._served: dict[Signature, None] = {}  # signatures that the plan has answered at any time
        self._verified = VerifiedInputs(decision.inputs, dynamic=decision.plan.shapes == "dynamic")
        self.missed, self._learn = MissedInputs(self._verified), learn
        self._writes = InputWrites(original, self._verified)
        self._circuits = PlanCircuits()
        self._lock = threading.Lock()
        recompiles = Recompiles(told=self._count_recompile, give_up=self._disable_plan, price=self.make_price())
        self._plan = LivePlan(original, decision, recompiles, borrow=borrow, backend=backend)
        self._device, self._inference = decision.workload.device, decision.workload.mode == "inference"
        if canary is not None and not self._inference:
            raise InputError(
                "canary is given, but the plan is for training: only answers can be compared, not gradients"
            )
        self.canary = canary
        self._latency = Latency(self._device, SpeedMonitor(decision))
        self._canary = Canary(canary, original, decision, self.statistics, self.close) if canary is not None else None
        self._module = original if isinstance(original, torch.nn.Module) else None
        self._changed = find_change or CallGuard(original, inference=self._inference).make_check()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original does. Compiled checks, if any, take usual calls alike (`_torch/native/served.h`)."""
        refusal = self._refusal
        if refusal is not None:
            if self.is_eager_only:
                self.statistics.stayed += 1
                return self._answer_instead(*args, **kwargs)
            if refusal is not self._said_refusal:
                self._said_refusal = refusal
                return self.answer_by_original(refusal, args, kwargs)
            self.statistics.reasons[refusal.reason] += 1
            return self._answer_instead(*args, **kwargs)
        last, key = self._last, None
        try:
            call = last[1] if last is not None and last[0](args, kwargs) else None
            if call is None:
                key = signature_of(args, kwargs)
                call = self._calls.get(key)
        except Exception:  # an input may be of any kind, and fail when it is described
            return self.answer_by_original(UNREADABLE, args, kwargs)
        if call is None or is_grad_enabled() or is_autocast_enabled(self._device) or self._changed():
            return self._slow(key or signature_of(args, kwargs), args, kwargs)
        counts = self.statistics
        try:
            result = (
                call(*args, **kwargs) if counts.optimized % self._latency.every else self._time_call(call, args, kwargs)
            )
        except Exception as error:  # a plan may fail in any way: the call is answered, the failure counted and logged
            call = last = None  # they refer to memory that may have to be freed
            return self._handle_failure(error, key or signature_of(args, kwargs), args, kwargs)
        counts.optimized += 1
        return result

    def answer_after_failure(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call at which the plan failed when compiled code called it (`_torch/native/served.h`)."""
        try:
            raise error
        except Exception as raised:  # so that it is the context of an error of the original
            del error  # which would hold this frame, and that frame the error
            return self._handle_failure(raised, signature_of(args, kwargs), args, kwargs)

    def can_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        """Return why the original would answer such a call now, or None if the plan may."""
        if self._refusal is not None:
            return self._refusal
        try:
            hash(key := signature_of(args, kwargs))
        except Exception:  # as in a call
            return UNREADABLE
        fallback = self._find_fallback(key, args, kwargs) or self._circuits.find_wait(key)
        return fallback or (None if self._may_share_memory(key, args, kwargs) else OVERLAPS)

    def _slow(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call whose signature is new or not verified, or whose state may differ from the verification's."""
        fallback = self._find_fallback(key, args, kwargs)
        if fallback is NOT_VERIFIED:
            return self.answer_unverified(key, args, kwargs)
        fallback = fallback or self._circuits.admit(key)
        if fallback is not None:
            return self.answer_by_original(fallback, args, kwargs)
        if not self._may_share_memory(key, args, kwargs):
            return self._writes.learn_from_call(key, self.answer_by_original, OVERLAPS, args, kwargs)
        is_first = key not in self._served
        snapshot = self._writes.take_snapshot(args, kwargs) if is_first else None
        start, undo = time.perf_counter(), InputSnapshot(self.original, args, kwargs) if is_first else None
        try:
            compiled, result = self._run_plan(args, kwargs)
        except Exception as error:  # as above: compiling happens here too, and may fail in any way
            if undo is not None:
                undo()
            return self._handle_failure(error, key, args, kwargs)
        self._circuits.record_success(key)
        self.statistics.optimized += 1
        # Another thread may have disabled the plan, and the call may have changed its inputs.
        if self._refusal is None and self._plan.compiled is compiled and is_of(key, args, kwargs):
            if is_first:
                self._note_served(key, snapshot)
                self.statistics.first_calls += 1
                self.statistics.first_calls_s += time.perf_counter() - start
            self._add_fast_path(compiled, key, args, kwargs)
        return result

    def _note_served(self, key: Signature, snapshot: TensorSnapshot | None) -> None:
        """Note a first call, and forget signatures whose first calls were long ago."""
        self._served[key] = None
        self._writes.note(key, snapshot)
        for other in forget_oldest(self._served):
            self._drop_path(other)
            self._writes.forget(other)

    def _run_plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[CompiledPlan, Any]:
        with self._lock:  # two first calls at once would compile twice
            before = self._plan.compiled
            compiled = self._plan.compile(args, kwargs)
            if compiled is not before and self._refusal is not None:  # it was closed meanwhile, which takes no lock
                self.forget()
                raise UnsupportedError("the plan was closed while it was compiled")
        return compiled, self._add_canary(self._apply_freeze(compiled.call))(*args, **kwargs)

    def _add_fast_path(
        self, compiled: CompiledPlan, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Find the fast path for calls like one that was answered. If that fails, the full checks stay in use."""
        try:
            bypass = compiled.bypass(args, kwargs)
        except Exception as error:  # the call is answered, despite any error here
            logger.debug("torchwise: no fast path for calls of this signature", exc_info=error)
            return
        with self._lock:  # or a freeze meanwhile would miss this path
            self._calls[key] = bypass = self._add_canary(self._apply_freeze(self._writes.guard_overlaps(key, bypass)))
            self._last = recognize_by(args, kwargs, bypass)

    def _time_call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Time a call without the comparison around it, unless this call is to be compared."""
        plain = getattr(call, "plain", call)
        if self._canary is not None and self._canary.is_due():
            return self._canary.compare_call(plain, args, kwargs)
        return self._latency.time_call(plain, args, kwargs, self.statistics.latency)

    def _add_canary(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call if self._canary is None else self._canary.wrap(call)

    def _apply_freeze(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return forbid_compile(call) if self.is_frozen else call

    def _handle_failure(self, error: Exception, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer by the original. If that raises too, the fault was the call's and not the plan's."""
        if (fallback := self._excuse(error, key)) is not None:
            return self.answer_by_original(fallback, args, kwargs)
        kind, plan = type(error).__name__, str(self.decision.plan)
        is_memory, text = isinstance(error, torch.OutOfMemoryError), ""
        if is_memory:  # first, so that the original has room
            text = pop_traceback(error)
            self._release(plan)
        result = self.answer_by_original(Fallback(FallbackReason.PLAN_FAILED, kind), args, kwargs)
        self.statistics.count_failure(error)
        if self.statistics.failures.total() == 1:
            logger.warning(
                "torchwise: plan %s failed, the original answers%s", plan, text, exc_info=None if text else error
            )
        if not is_memory and (wait_s := self._circuits.record_failure(key)) is not None:
            self._drop_path(key)
            self.statistics.opened += 1
            note = f"plan {plan} failed again ({kind}): calls of that signature go to the original for {wait_s:.0f} s"
            alert("plan_failed", note, error, plan=plan, failure=kind, wait_s=wait_s)
        return result

    def _excuse(self, error: Exception, key: Signature) -> Fallback | None:
        """Return why the original answers after an error that is no fault of the plan, or None if it is one."""
        if isinstance(error, OverlapError):
            return OVERLAPS
        is_stale = isinstance(error, ChangedModelError)
        if isinstance(error, FrozenError) or (self.is_frozen and is_stale):
            self._circuits.record_frozen(key)
            self._drop_path(key)
            return FROZEN_CHANGED
        other_weights = find_other_weights(self.original, self.decision) if is_stale else None
        if other_weights or isinstance(error, UnjudgedWeightsError):
            self.close(stale := Fallback(FallbackReason.STALE_DECISION, other_weights or str(error)))
            return stale
        if isinstance(error, ChangedModelError):  # the next call compiles the plan again
            self._plan.changed_since = error.varied
            self.forget()
            return Fallback(FallbackReason.MODEL_CHANGED, f"{error}; the plan is compiled again")
        if isinstance(error, RecompileLimitError):  # code compiled so far goes on answering
            return self._tell_limit(error)
        return None

    def _drop_path(self, key: Signature) -> None:
        self._calls.pop(key, None)
        self._last = None

    def _count_recompile(self, what: str) -> None:
        self.statistics.recompiles += 1
        message = "torchwise: plan %s is compiled again for a call that it has answered before: %s"
        logger.info(message, self.decision.plan, what)

    def _disable_plan(self, error: RecompileLimitError) -> None:
        """Have the original answer from the next call on. The present call still runs the compiled plan."""
        self._refusal, self.is_eager_only = self._tell_limit(error), False
        self._calls.clear()
        self._last = self._plan.compiled = None

    def _tell_limit(self, error: RecompileLimitError) -> Fallback:
        return self._fallbacks.tell_limit(error, self.statistics, "; the original answers")

    def _release(self, plan: str) -> None:
        """Free the plan's memory on the GPU, captured graphs included, and leave the plan alone for a time."""
        is_first = self._circuits.memory.record_failure()
        self.forget()
        collect_garbage()
        torch.cuda.empty_cache()  # does nothing without a GPU
        if not is_first:  # another thread's call failed for the same reason at once
            return
        self.statistics.opened += 1
        message = f"the GPU ran out of memory under plan {plan}: its memory is freed, and the original answers for now"
        alert("out_of_memory", message, plan=plan)

    @property
    def active_plan(self) -> CompiledPlan | None:
        """The compiled plan, or None before the first call that it answers and after it was disabled."""
        return self._plan.compiled

    def set_frozen(self, frozen: bool) -> None:
        """Say whether nothing more may be compiled, and forget the paths that were found before."""
        with self._lock:  # or a call under way would add one
            super().set_frozen(frozen)
            self._calls.clear()  # the next calls find their fast paths again, frozen or not
            self._circuits.forget_frozen()
            self._last = None

    def forget(self) -> None:
        """Free the plan's memory. The next call that it may answer compiles it again."""
        self._calls.clear()
        self._last = None
        self._plan.forget()

    def get_recipe(self) -> Recipe:
        """Return how a copy makes it again."""
        return self.restore, (self.original, self.decision, self.borrow, self.canary, self._refusal)

    @classmethod
    def restore(
        cls,
        original: Callable[..., Any],
        decision: Decision,
        borrow: bool = False,
        canary: int | None = None,
        refusal: Fallback | str | None = None,
    ) -> Dispatcher:
        """Make it again in a copy or from a pickle."""
        effective = refusal_of_copy(original, decision, refusal)
        return cls(original, decision, effective, borrow=borrow, canary=canary)

    def _find_fallback(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        """Return why the plan may not answer: the state, unverified inputs, or a freeze."""
        refusal = self._state_refusal(args, kwargs)
        if refusal is None and key not in self._calls:
            refusal = self._find_unverified(args, kwargs)
        if refusal is None and self.is_frozen:
            refusal = FROZEN if key not in self._served else FREED if self._plan.compiled is None else None
        return refusal

    def _state_refusal(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        """Return why the plan may not answer in the state that the process and the model are in, or None."""
        if is_grad_enabled() and self._inference and may_need_gradients(self._module, self.decision.plan, args, kwargs):
            return Fallback(FallbackReason.GRADIENTS_ENABLED)
        if is_autocast_enabled(self._device):
            return Fallback(FallbackReason.AUTOCAST_ENABLED)
        return self._changed()

    def _find_unverified(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        if self._find_unlike is not None and (unlike := self._find_unlike(args, kwargs)) is not None:
            return unlike
        if (elsewhere := self._verified.find_other_device(args, kwargs, self._device)) is not None:
            return elsewhere
        return None if self._verified.cover(specify_inputs(Example(args, kwargs))) else NOT_VERIFIED

    def answer_unverified(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call on inputs that the plan was not verified on: by the original."""
        missed, counts = self.missed, self.statistics
        fallback = missed.note(key, args, kwargs, counts)
        learn = self._learn  # which another thread may take meanwhile
        if learn is not None and not self.is_frozen and self._fallbacks.are_too_many(missed.other_sizes, counts):
            self._learn = None
            try:
                learn(missed.list_other_sizes())
            except Exception as error:  # there may be no thread for it, and a call fails for no search
                logger.debug("torchwise: nothing is searched for other sizes", exc_info=error)
        return missed.answer(self.answer_by_original, fallback, args, kwargs)

    def _may_share_memory(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether inputs share memory as verified, or where the call writes nothing."""
        if key in self._served:
            return self._writes.may_go_on(key, args, kwargs)
        return self._writes.is_verified(key, specify_inputs(Example(args, kwargs)), args, kwargs)
