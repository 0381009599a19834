"""Watch a served plan: a canary compares some answers with the original, and a sample of calls is timed."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from statistics import median
from typing import Any

import torch

from torchwise.alerts import alert
from torchwise.errors import InputError, is_count
from torchwise.records import Decision
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.statistics import Histogram, Statistics
from torchwise.verify import Observation, Sensitivity, mismatch, observation_of, state_leaves
from torchwise.workload import Example
from torchwise.workload.module_state import State

logger = logging.getLogger("torchwise")

MAX_EVERY, EVERY = 256, 24
"""One call in so many is timed, the first number for short calls.

Reading the clock costs a tenth of a microsecond, an event on a GPU several.
"""
SHORT_S = 1e-4
"""Seconds below which a call is short."""
RECENT = 8
"""Timed calls of which the median is compared with the measurement of the decision: so some 200 calls lie behind it."""
WITHIN_S = 10.0
"""Seconds that these calls may take. Calls that take longer are timed more often."""
SLOWER, RECOVERED = 1.5, 1.2
"""Multiple of the measured duration from which an alert says that the plan is slower: one machine varies by less.

The next alert follows only after the plan was faster than the second multiple.
"""


class Canary:
    """Compares one call in `every` with the original, on copies of the inputs, and restores random numbers afterwards.

    The original starts from the same state of the model and of the inputs as the plan. The changes that both make to it
    are compared, too. A model that draws random numbers cannot be compared: at the first difference the canary is
    switched off. So it is if an input cannot be copied, or the model's state cannot be restored. Any other error of the
    comparison switches it off, too, and never reaches the caller.

    The verified error of the decision is the error that rounding may cause. A wrong plan is closed, with the reason.

    Raises:
        InputError: `every` is no whole number of at least 1.
    """

    def __init__(
        self,
        every: int,
        original: Callable[..., Any],
        decision: Decision,
        statistics: Statistics,
        close: Callable[[Fallback], None],
    ) -> None:
        if not is_count(every):
            raise InputError(f"canary is {every!r}, but must be a whole number of calls, at least 1, per comparison")
        self.every = every
        self._original = original
        self._decision = decision
        self._statistics = statistics
        self._close = close
        self._counted = itertools.count(1)
        self._is_off = False

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` with the comparison in it. Its attribute `plain` is `call` itself."""
        following, every = self._counted.__next__, self.every

        def call_or_compare(*args: Any, **kwargs: Any) -> Any:
            if following() % every or self._is_off:
                return call(*args, **kwargs)
            return self.compare_call(call, args, kwargs)

        call_or_compare.plain = call  # type: ignore[attr-defined]
        return call_or_compare

    def is_due(self) -> bool:
        """Count a call, and return whether to compare it."""
        return not (next(self._counted) % self.every or self._is_off)

    def compare_call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call of a plan after comparing it with the original's answer."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return call(*args, **kwargs)
        try:
            copied, model, inputs = Example(args, kwargs).clone(), State({"": self._original}), _inputs(args, kwargs)
        except Exception as error:  # inputs or state may refuse in any way to be copied, and then cannot be compared
            self._switch_off(f"inputs or state cannot be copied ({error})", error)
            return call(*args, **kwargs)
        answer = call(*args, **kwargs)
        try:
            found = self._find_mismatch(
                _observe_answer(answer, args, kwargs, inputs, model, self._original), copied, model
            )
        except Exception as error:  # the plan has answered, and only the comparison fails here
            self._switch_off(f"comparing failed with {type(error).__name__}", error)
            return answer
        if found is None:
            return answer
        self._disable_plan(found)
        model.restore()
        inputs.restore()
        return self._original(*args, **kwargs)

    def _find_mismatch(self, candidate: Observation, copied: Example, model: State) -> str | None:
        """Return the plan's error, if there is one. The model's state is left as the plan left it.

        `copied` and `model` are the inputs and the state as they were when the plan started.
        """
        after, call_inputs = State({"": self._original}), _inputs(copied.args, dict(copied.kwargs))
        try:
            model.restore()
            expected, drew = self._call_original(copied)
            original = _observe_answer(expected, copied.args, dict(copied.kwargs), call_inputs, model, self._original)
            moved = None if drew else Sensitivity(partial(self._run_perturbed, copied, call_inputs, model))
            found = mismatch(candidate, original, self._decision.error or 0.0, moved)
        finally:
            after.restore()
        self._statistics.compared += 1
        if found and drew:
            self._switch_off("the model draws random numbers")
            return None
        return found

    def _run_perturbed(
        self, copied: Example, inputs: State, model: State, context: AbstractContextManager[Any]
    ) -> dict[str, Any]:
        """Return the original's leaves for the same call, by name, in a context that perturbs its roundings."""
        inputs.restore()
        model.restore()
        with context:
            expected, _ = self._call_original(copied)
        return dict(_observe_answer(expected, copied.args, dict(copied.kwargs), inputs, model, self._original).leaves)

    def _call_original(self, call_inputs: Example) -> tuple[Any, bool]:
        """Return the original's answer, and whether it drew random numbers, which are put back."""
        devices = [torch.cuda.current_device()] if self._decision.workload.device == "cuda" else []

        def states() -> list[torch.Tensor]:
            return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]

        with torch.random.fork_rng(devices), torch.no_grad():
            before = states()
            answer = self._original(*call_inputs.args, **call_inputs.kwargs)
            drew = not all(map(torch.equal, before, states()))
        return answer, drew

    def _disable_plan(self, found: str) -> None:
        fallback = Fallback(FallbackReason.CANARY_MISMATCH, found)
        self._statistics.mismatched += 1
        self._statistics.optimized -= 1  # this call, which is about to be counted as the plan's
        self._statistics.count(fallback)
        self._close(fallback)
        plan = str(self._decision.plan)
        message = f"plan {plan} gave another answer than the original, which answers from now on: {found}"
        alert("canary_mismatch", message, plan=plan, found=found)

    def _switch_off(self, reason: str, error: Exception | None = None) -> None:
        if not self._is_off:
            self._is_off = True
            logger.warning("torchwise: the canary is switched off, because %s", reason, exc_info=error)


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
    return State({"input ": (args, kwargs)})


def _observe_answer(
    answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: State, model: State, original: Any
) -> Observation:
    call_inputs = (args, kwargs)
    moved = [leaf for state in (inputs, model) for leaf in state_leaves(state, original, call_inputs, answer)]
    return observation_of(answer, call_inputs, moved)


class Latency:
    """Times a sample of the calls. On a GPU, it reads events on its stream at a later call, so that nothing waits.

    After each timed call, `on_median` is called with the median of the last `RECENT`.

    Attributes:
        every: one call in so many is to be timed.
    """

    def __init__(self, device: str, on_median: Callable[[float], None]) -> None:
        self._is_cuda = device == "cuda"
        self._on_median = on_median
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._pending: tuple[Any, Any] | None = None
        self.every = 1  # until the first one shows how long a call takes

    def time_call(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], histogram: Histogram
    ) -> Any:
        """Answer a call, and count its duration in a histogram."""
        timed = self._time_on_gpu if self._is_cuda else self._time_on_cpu
        return timed(call, args, kwargs, histogram)

    def _time_on_cpu(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], histogram: Histogram
    ) -> Any:
        start = time.perf_counter()
        answer = call(*args, **kwargs)
        self._add(time.perf_counter() - start, histogram)
        return answer

    def _time_on_gpu(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], histogram: Histogram
    ) -> Any:
        if torch.cuda.is_current_stream_capturing():
            return call(*args, **kwargs)
        pending, self._pending = self._pending, None  # at once: several threads may be here
        if pending is not None and not pending[1].query():  # the GPU is far behind: the next one will do
            self._pending = pending
            return call(*args, **kwargs)
        if pending is not None:
            self._add(pending[0].elapsed_time(pending[1]) / 1e3, histogram)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        answer = call(*args, **kwargs)
        end.record()
        self._pending = start, end
        return answer

    def _add(self, seconds: float, histogram: Histogram) -> None:
        histogram.add(seconds)
        self._recent.append(seconds)
        recent = tuple(self._recent)  # at once: several threads may be here
        self.every = choose_every(min(recent))
        if len(recent) == RECENT:
            self._on_median(median(recent))


def choose_every(seconds: float) -> int:
    """Return one call in how many to time, if a call takes so many seconds."""
    return MAX_EVERY if seconds < SHORT_S else max(1, min(EVERY, int(WITHIN_S / (RECENT * seconds))))


class SpeedMonitor:
    """Receives the recent duration of calls, and raises an alert if it is longer than the decision promised."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self._is_slower = False

    def __call__(self, seconds: float) -> None:
        """Compare a median with the promised duration, if there is one for these inputs."""
        promised = self._plan_duration_s()
        if promised is None or seconds <= RECOVERED * promised:
            self._is_slower = False
        elif seconds > SLOWER * promised and not self._is_slower:
            self._is_slower = True
            plan = str(self._decision.plan)
            message = (
                f"plan {plan} takes {seconds * 1e3:.3g} ms, but {promised * 1e3:.3g} ms were measured for the decision"
            )
            alert("slow_down", message, plan=plan, seconds=seconds, promised_s=promised)

    def _plan_duration_s(self) -> float | None:
        decision, speedup = self._decision, self._decision.speedup
        is_for_one_size = len(decision.inputs) == 1 and decision.plan.shapes != "dynamic"
        return decision.baseline_s / speedup.mid if speedup is not None and is_for_one_size else None
