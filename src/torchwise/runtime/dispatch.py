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
from torchwise.compile import Backend, CompiledPlan, Signature, compile_plan, signature_of
from torchwise.compile.cuda_graphs.compile_freeze import FrozenError, forbid_compile
from torchwise.compile.cuda_graphs.graph_pool import collect_garbage
from torchwise.compile.guards.varying_values import ChangedModelError, VaryingValue
from torchwise.compile.recompiles import RecompileLimitError, Recompiles
from torchwise.errors import InputError, UnsupportedError
from torchwise.records import Decision
from torchwise.runtime.call_guard import CallGuard
from torchwise.runtime.canary import Canary
from torchwise.runtime.circuit_breaker import CircuitBreaker
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.input_writes import OVERLAPS, InputSnapshot, InputWrites, OverlapError
from torchwise.runtime.latency import EVERY, Latency, SpeedMonitor
from torchwise.runtime.signature_match import Known, VerifiedInputs, is_of, make_recognizer, may_need_gradients
from torchwise.runtime.statistics import EAGER_DECISION, Fallbacks, Statistics
from torchwise.runtime.traceback_utils import pop_traceback
from torchwise.workload import Example
from torchwise.workload.identity import specify_inputs

logger = logging.getLogger("torchwise")

NOT_VERIFIED = Fallback(FallbackReason.INPUTS_NOT_VERIFIED)
FROZEN = Fallback(FallbackReason.FROZEN)
FREED = Fallback(FallbackReason.FROZEN_FREED)
FROZEN_CHANGED = Fallback(FallbackReason.FROZEN_CHANGED)
CLOSED = Fallback(FallbackReason.CLOSED)
MAX_CIRCUITS = 1024
"""Signatures whose failures are remembered: a plan for dynamic shapes may meet any number of them."""
REFUSED_WAIT_S, MAX_REFUSED_WAIT_S = 1.0, 60.0
"""Seconds for which a frozen plan is left alone on calls that it would be compiled for: asking takes some 10 ms."""
MEMORY_WAIT_S = 600.0
"""Seconds without the plan after the GPU ran out of memory. The cause may be gone by then."""


class Dispatcher:
    """Answers calls by a decided plan if it is verified for them, and by the original otherwise.

    The plan answers a call whose inputs have a verified signature (for a plan with dynamic shapes: the same dtypes and
    ranks), in the grad mode of the verification. It is compiled on the first such call.

    If the plan fails, the original answers that very call, which is logged once. After some failures it answers calls
    of that signature for a time, and then the plan is tried again (`CircuitBreaker`). If the GPU ran out of memory, the
    plan's memory is freed, and the original answers all calls for a time. If the original raises as well, its error is
    the caller's.

    Args:
        original: the module or function.
        decision: the decision for it.
        refusal: why the plan may not answer at all, or None.
        borrow: whether a captured plan returns memory that its next call overwrites.
        canary: calls per comparison with the original, or None for no comparison.
        statistics: counts calls, if several dispatchers share it.
        backend: makes the compiled part of the plan, in place of its own backend (`compile.aot`).

    Attributes:
        is_frozen: whether nothing more may be compiled and captured.
        is_eager_only: whether the original answers every call, as a decision for eager says, and that was logged.

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
    ) -> None:
        self.original = original
        self._backend = backend
        self.borrow = borrow
        self.decision = decision
        self.statistics = Statistics() if statistics is None else statistics
        self.is_frozen = False
        self._refusal = refusal if refusal or not decision.plan.is_eager else EAGER_DECISION
        self._said_refusal: Fallback | None = None  # the refusal that calls were counted and logged for
        self.is_eager_only = False
        self._calls: dict[Signature, Callable[..., Any]] = {}
        self._last: Known | None = None  # for the last signature that a plan answered at length
        self._compiled: CompiledPlan | None = None
        self._changed_since: VaryingValue | None = None  # the change after which the plan must be compiled again
        self._served: set[Signature] = set()  # signatures that the plan has answered at any time
        self._verified = VerifiedInputs(decision.inputs, dynamic=decision.plan.shapes == "dynamic")
        self._writes = InputWrites(original, self._verified)
        self._circuits: dict[Signature, CircuitBreaker] = {}
        self._refused: dict[Any, CircuitBreaker] = {}  # as `_circuits`, of a frozen plan, by signature and grad mode
        self._memory = CircuitBreaker(failures=1, first_wait_s=MEMORY_WAIT_S)
        self._lock = threading.Lock()
        self._fallbacks = Fallbacks(decision, "the original answers")
        self._recompiles = Recompiles(told=self._count_recompile, give_up=self._disable_plan)
        self._device, self._inference = decision.workload.device, decision.workload.mode == "inference"
        if canary is not None and not self._inference:
            raise InputError(
                "canary is given, but the plan is for training: only answers can be compared, not gradients"
            )
        self.canary = canary
        self._latency = Latency(self._device, self.statistics.latency, SpeedMonitor(decision))
        self._canary = Canary(canary, original, decision, self.statistics, self.close) if canary is not None else None
        self._module = original if isinstance(original, torch.nn.Module) else None
        self._changed = CallGuard(original, inference=self._inference).find_change

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the original does. `benchmarks/dispatch.py` measures the time that this adds to the plan's own."""
        refusal = self._refusal
        if refusal is not None:
            if self.is_eager_only:
                self.statistics.stayed += 1
                return self.original(*args, **kwargs)
            if refusal is not self._said_refusal:
                self._said_refusal = refusal
                return self._original(refusal, args, kwargs)
            self.statistics.reasons[refusal.reason] += 1
            return self.original(*args, **kwargs)
        last, key = self._last, None
        try:
            call = last[1] if last is not None and last[0](args, kwargs) else None
            if call is None:
                key = signature_of(args, kwargs)
                call = self._calls.get(key)
        except Exception:  # an input may be of any kind, and fail when it is described
            return self._original(Fallback(FallbackReason.INPUTS_UNREADABLE), args, kwargs)
        if call is None or is_grad_enabled() or is_autocast_enabled(self._device) or self._changed():
            return self._slow(key or signature_of(args, kwargs), args, kwargs)
        counts = self.statistics
        try:
            result = call(*args, **kwargs) if counts.optimized % EVERY else self._time_call(call, args, kwargs)
        except Exception as error:  # a plan may fail in any way: the call is answered, the failure counted and logged
            call = last = None  # they refer to memory that may have to be freed
            return self._handle_failure(error, key or signature_of(args, kwargs), args, kwargs)
        counts.optimized += 1
        return result

    def _slow(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call whose signature is new or not verified, or whose state may differ from the verification's."""
        refusal = self._state_refusal(args, kwargs)
        if refusal is None and key not in self._calls:
            refusal = self._find_unverified(args, kwargs)
        if refusal is None and self.is_frozen:
            refusal = FROZEN if key not in self._served else FREED if self._compiled is None else None
        refusal = refusal or self._waits(key)
        if refusal is not None:
            return self._original(refusal, args, kwargs)
        is_first = key not in self._served
        if not (self._has_verified_overlap if is_first else self._writes.may_go_on)(key, args, kwargs):
            return self._writes.learn_from_call(key, self._original, OVERLAPS, args, kwargs)
        snapshot = self._writes.take_snapshot(args, kwargs) if is_first else None
        start, undo = time.perf_counter(), InputSnapshot(self.original, args, kwargs) if is_first else None
        try:
            compiled, result = self._run_plan(args, kwargs)
        except Exception as error:  # as above: compiling happens here too, and may fail in any way
            if undo is not None:
                undo()
            return self._handle_failure(error, key, args, kwargs)
        if (circuit := self._circuits.pop(key, None)) is not None:
            circuit.record_success()
        self._refused.pop((key, is_grad_enabled()), None)
        self._memory.record_success()
        self.statistics.optimized += 1
        # Another thread may have disabled the plan, and the call may have changed its inputs.
        if self._refusal is None and self._compiled is compiled and is_of(key, args, kwargs):
            if is_first:
                self._served.add(key)
                self._writes.note(key, snapshot)
                self.statistics.first_calls += 1
                self.statistics.first_calls_s += time.perf_counter() - start
            self._add_fast_path(compiled, key, args, kwargs)
        return result

    def _has_verified_overlap(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return self._writes.is_verified(key, specify_inputs(Example(args, kwargs)), args, kwargs)

    def _run_plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[CompiledPlan, Any]:
        with self._lock:  # two first calls at once would compile twice
            compiled = self._compile_plan(args, kwargs)
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
            self._last = make_recognizer(args, kwargs, bypass)

    def _time_call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Time a call without the comparison that may be around it."""
        return self._latency.time_call(getattr(call, "plain", call), args, kwargs)

    def _add_canary(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call if self._canary is None else self._canary.wrap(call)

    def _apply_freeze(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return forbid_compile(call) if self.is_frozen else call

    def _waits(self, key: Signature) -> Fallback | None:
        """Return why the plan is left alone for now on such calls, or None if it may answer this one."""
        if (refused := self._refused.get((key, is_grad_enabled()))) is not None and not refused.admits():
            return FROZEN_CHANGED
        circuit = self._circuits.get(key)
        if circuit is not None and not circuit.admits():
            return Fallback(FallbackReason.CIRCUIT_OPEN)
        if not self._memory.admits():
            return Fallback(FallbackReason.OUT_OF_MEMORY)
        return None

    def _handle_failure(self, error: Exception, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer by the original. If that raises too, the fault was the call's and not the plan's."""
        if isinstance(error, OverlapError):  # which is no fault
            return self._original(OVERLAPS, args, kwargs)
        is_stale = isinstance(error, ChangedModelError)
        if isinstance(error, FrozenError) or (self.is_frozen and is_stale):  # nor is that
            waits = CircuitBreaker(1, REFUSED_WAIT_S, longest_wait_s=MAX_REFUSED_WAIT_S)
            self._refused.setdefault((key, is_grad_enabled()), waits).record_failure()
            self._calls.pop(key, None)
            self._last = None
            return self._original(FROZEN_CHANGED, args, kwargs)
        if isinstance(error, ChangedModelError):  # nor is that: the next call compiles the plan again
            self._changed_since = error.varied
            self._forget()
            changed = Fallback(FallbackReason.MODEL_CHANGED, f"{error}; the plan is compiled again")
            return self._original(changed, args, kwargs)
        if isinstance(error, RecompileLimitError):  # nor is that, and code compiled so far goes on answering
            return self._original(self._say_limit(error), args, kwargs)
        kind, plan = type(error).__name__, str(self.decision.plan)
        is_memory, text = isinstance(error, torch.OutOfMemoryError), ""
        if is_memory:  # first, so that the original has room
            text = pop_traceback(error)
            self._release(plan)
        result = self._original(Fallback(FallbackReason.PLAN_FAILED, kind), args, kwargs)
        self.statistics.count_failure(error)
        if self.statistics.failures.total() == 1:
            logger.warning(
                "torchwise: plan %s failed, the original answers%s", plan, text, exc_info=None if text else error
            )
        if is_memory:
            return result
        circuit = self._circuits.setdefault(key, CircuitBreaker())
        if len(self._circuits) > MAX_CIRCUITS:
            del self._circuits[next(iter(self._circuits))]
        if circuit.record_failure():
            self._calls.pop(key, None)
            self._last = None
            self.statistics.opened += 1
            wait_s = circuit.wait_s
            note = f"plan {plan} failed again ({kind}): calls of that signature go to the original for {wait_s:.0f} s"
            alert("plan_failed", note, error, plan=plan, failure=kind, wait_s=wait_s)
        return result

    def _count_recompile(self, what: str) -> None:
        self.statistics.recompiles += 1
        message = "torchwise: plan %s is compiled again for a call that it has answered before: %s"
        logger.info(message, self.decision.plan, what)

    def _disable_plan(self, error: RecompileLimitError) -> None:
        """Have the original answer from the next call on. The present call still runs the compiled plan."""
        self._refusal, self.is_eager_only = self._say_limit(error), False
        self._calls.clear()
        self._last = self._compiled = None

    def _say_limit(self, error: RecompileLimitError) -> Fallback:
        """Raise the alert once for each place that varies. Return the fallback."""
        fallback = Fallback(FallbackReason.RECOMPILE_LIMIT, error.reason)
        if not self._fallbacks.is_said(fallback):
            self._fallbacks.note_said(fallback)
            plan, count = str(self.decision.plan), self.statistics.recompiles
            message = f"plan {plan}: {error}; the original answers"
            reason = fallback.reason.value
            alert("recompile_limit", message, plan=plan, reason=reason, sentence=error.reason, recompiles=count)
        return fallback

    def _release(self, plan: str) -> None:
        """Free the plan's memory on the GPU, captured graphs included, and leave the plan alone for a time."""
        is_first = self._memory.record_failure()
        self._forget()
        collect_garbage()
        torch.cuda.empty_cache()  # does nothing without a GPU
        if not is_first:  # another thread's call failed for the same reason at once
            return
        self.statistics.opened += 1
        message = f"the GPU ran out of memory under plan {plan}: its memory is freed, and the original answers for now"
        alert("out_of_memory", message, plan=plan)

    @property
    def refusal(self) -> Fallback | None:
        """Why the plan may not answer at all, if that is so: it was refused, or closed since."""
        return self._refusal

    @property
    def active_plan(self) -> CompiledPlan | None:
        """The compiled plan, or None before the first call that it answers and after it was disabled."""
        return self._compiled

    def freeze(self) -> None:
        """Compile and capture nothing more: the original answers every call that needs it.

        Such calls have signatures that the plan never answered, or follow a change of the model or of PyTorch's
        settings that the plan does not follow. If that changes back, the plan answers again.

        Raises:
            UnsupportedError: this torch does not say when it compiles.
        """
        forbid_compile(self.original)  # which raises
        self._set_frozen(True)
        self.statistics.freeze()

    def unfreeze(self) -> None:
        """Compile and capture again, on the calls that need it."""
        self._set_frozen(False)
        self.statistics.at_freeze = None

    def _set_frozen(self, frozen: bool) -> None:
        with self._lock:
            self.is_frozen = frozen
            self._calls.clear()  # the next calls find their fast paths again, frozen or not
            self._refused.clear()
            self._last = None

    def close(self, fallback: Fallback = CLOSED) -> None:
        """Disable the plan and free its memory. The original answers from now on, with this reason."""
        self._refusal, self.is_eager_only = fallback, False
        self._forget()

    def _forget(self) -> None:
        self._calls.clear()
        self._last = None
        compiled, self._compiled = self._compiled, None
        if compiled is not None:
            compiled.close()

    def _compile_plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompiledPlan:
        if self._compiled is None:
            if self._changed_since is not None:
                self._recompiles.again([self._changed_since], at_start=True)
            workload = self.decision.workload
            self._compiled = compile_plan(
                self.original,
                self.decision.plan,
                Example(args, kwargs),
                device=workload.device,
                mode=workload.mode,
                borrow=self.borrow,
                backend=self._backend,
                recompiles=self._recompiles,
            )
            self._changed_since = None
            if self._refusal is not None:  # it was closed meanwhile
                self._forget()
                raise UnsupportedError("the plan was closed while it was compiled")
        return self._compiled

    def _original(self, fallback: Fallback, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Another thread may have closed it.
        self.is_eager_only = fallback.reason is FallbackReason.EAGER_DECISION and fallback is self._refusal
        self._fallbacks.count(fallback, self.statistics)
        return self.original(*args, **kwargs)

    def _state_refusal(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        """Return why the plan may not answer in the state that the process and the model are in, or None."""
        if is_grad_enabled() and self._inference and may_need_gradients(self._module, self.decision.plan, args, kwargs):
            return Fallback(FallbackReason.GRADIENTS_ENABLED)
        if is_autocast_enabled(self._device):
            return Fallback(FallbackReason.AUTOCAST_ENABLED)
        return self._changed()

    def _find_unverified(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fallback | None:
        if (elsewhere := self._verified.find_other_device(args, kwargs, self.decision.workload.device)) is not None:
            return elsewhere
        spec = specify_inputs(Example(args, kwargs))
        if self._verified.cover(spec):
            return None
        if not self._fallbacks.is_said(NOT_VERIFIED):
            logger.info("torchwise: the plan was verified on %s, and not on %s", self.decision.inputs, spec)
        return NOT_VERIFIED
