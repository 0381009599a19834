"""Capture a whole training step in one CUDA graph: forward, backward, clipping and the optimizer's update.

Sources: "CUDA Graphs" in PyTorch's notes (whole-network capture) for static batches, gradients in the graph's pool and
capturable optimizers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch.dynamo import make_settings_check
from torchwise.alerts import OnceLog
from torchwise.compile.cuda_graphs.capture_errors import explain_failure
from torchwise.compile.cuda_graphs.compile_freeze import FrozenError, is_in_frozen_call
from torchwise.compile.cuda_graphs.graph_pool import GraphPool
from torchwise.compile.cuda_graphs.recorded_graph import (
    Graph,
    GraphKey,
    graph_key_of,
    is_on_gpu,
    is_unavailable,
    overlap,
    tensors_of,
)
from torchwise.compile.cuda_graphs.recording_limit import RecordingLimit
from torchwise.compile.cuda_graphs.training_state import (
    Grads,
    StateChange,
    StepRecording,
    TrainingState,
    detach_tensors,
)
from torchwise.compile.guards.code_guard import CodeGuard
from torchwise.compile.guards.varying_values import VaryingKind, VaryingValue
from torchwise.compile.recompiles import Recompiles
from torchwise.compile.signature import forget_oldest
from torchwise.errors import UnsupportedError
from torchwise.records.format import pluralize
from torchwise.workload import pytree

logger = logging.getLogger("torchwise")


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A recorded step, and the gradients that it reads and writes.

    Attributes:
        graph: the recorded step, with the batch as its inputs.
        entry: for each parameter, the gradient tensor that the step updates in place, or None if it reads none.
        left: for each parameter, the gradient tensor after the step.
        settled: returns whether PyTorch's settings are still those of the recording.
    """

    graph: Graph
    entry: Grads
    left: Grads
    settled: Callable[[], bool]


class CapturedStep:
    """Runs one training step on each call: the first of a signature in eager, later ones from one CUDA graph.

    `step(*batch)` may contain a whole step: `zero_grad`, the forward pass under autocast, the loss, `backward`,
    clipping, `GradScaler`, `optimizer.step()`. Its outputs are returned as detached copies. Batches are copied in, with
    one graph for each of their signatures, all in one memory pool. At most 64 signatures have graphs at once. Batches
    of others run in eager.

    The first call of a signature runs in eager, and so initializes everything lazy (optimizer states, scales, compiled
    code). The second warms up on a side stream. It then restores everything bit by bit (parameters, buffers, optimizer
    states, scales, gradients, random numbers), records, and replays. So each call is exactly one step. The recording
    needs memory for a second copy of that state.

    Every call checks for changes. It compares methods in classes, requires_grad, train / eval, autocast, PyTorch's
    settings and the numbers in `param_groups`, and finds moved or replaced tensors. A change starts over as with a
    first call. So a learning rate that changes on every step must be a tensor on CUDA, `lr=torch.tensor(1e-3,
    device="cuda")`. Schedulers then write into it.

    The gradients in `.grad` after the step are the graph's own memory, which the next call overwrites. A step that adds
    to gradients without clearing them (accumulation) reads the current values of `.grad`. Other tensors are copied in,
    and None counts as zeros. A step that sets `.grad` to None runs in eager if a gradient is set before it. So does a
    step that writes to a batch whose tensors share memory.

    Python runs only while recording. Prints and counts of the step, or a scheduler inside it, do not happen on replay.
    Everything that the step writes to must be among these arguments, or be part of them. The warm-up also writes to
    anything else. If the step computes a gradient from the last one, `p.grad = p.grad + g`, this read goes unnoticed.

    Args:
        step: takes the batch, tensors in any nesting, and returns any nesting of tensors.
        modules: the modules that it trains, or whose buffers it writes to.
        optimizers: the optimizers that it steps.
        scalers: the `torch.amp.GradScaler`s that it uses. Their optimizers must be fused.
        recompiles: counts new captures after changes, and limits them.

    Raises:
        UnsupportedError: the step cannot be captured (on the first or second call), or a tensor of the batch requires
            gradients (on a later one). The message gives the reason, the line, and the way out. The state is restored.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        modules: Sequence[torch.nn.Module] = (),
        optimizers: Sequence[torch.optim.Optimizer] = (),
        scalers: Sequence[torch.amp.GradScaler] = (),
        recompiles: Recompiles | None = None,
    ) -> None:
        self._step = step
        self._recompiles = recompiles
        self._state = TrainingState(modules, optimizers, scalers)
        self._code = CodeGuard(step, *modules)
        self._graphs: dict[GraphKey, RecordedStep] = {}
        self._limit = RecordingLimit()
        self._seen_keys: dict[GraphKey, None] = {}
        self._warned = OnceLog()
        self._refusal: str | None = None
        self._lock = threading.RLock()
        self._inside = False
        self._pool = GraphPool()

    def __repr__(self) -> str:
        name = getattr(self._step, "__qualname__", type(self._step).__qualname__)
        return f"<CapturedStep {name}: {pluralize(len(self._graphs), 'graph')}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one training step."""
        with self._lock:
            may_capture = not (self._inside or torch.is_inference_mode_enabled())
            if not may_capture or not self._has_gpu_tensors(args, kwargs) or is_unavailable():
                return self._call_eager(args, kwargs)
            self._inside = True
            try:
                return self._answer(graph_key_of(args, kwargs), args, kwargs)
            finally:
                self._inside = False

    def close(self) -> None:
        """Free the graphs and their memory. Gradients stay."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._graphs.clear()
        self._seen_keys.clear()

    def _answer(self, key: GraphKey, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._refusal is not None:
            raise UnsupportedError(self._refusal)
        change = self._state.find_change()
        if change is None and (replaced := self._code.find_replaced()) is not None:
            change = StateChange(replaced, f"{replaced} was replaced")
        recorded = self._graphs.get(key)
        if is_in_frozen_call() and (change is not None or recorded is None or not recorded.settled()):
            raise FrozenError("the step is frozen, but this batch needs a new capture")
        if change is not None:
            self._start_over(change)
            recorded = None
        if recorded is None and key not in self._seen_keys:
            return self._first(key, args, kwargs)
        tensors = tensors_of(args, kwargs)
        if any(t.requires_grad for t in tensors):
            raise UnsupportedError(
                "a tensor of the batch requires gradients, which a replay would not compute: detach it, and call "
                "requires_grad_() inside the step"
            )
        if recorded is None and not self._limit.has_room(self._graphs, self._graphs.clear):
            return self._call_eager(args, kwargs)
        if recorded is None or not recorded.settled():
            recorded = self._graphs[key] = self._capture(args, kwargs)
        if recorded.graph.written and overlap(tensors):
            return self._call_eager(args, kwargs)  # inputs may share memory, and a graph has copies of each
        return self._replay(recorded, args, kwargs)

    def _first(self, key: GraphKey, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a step in eager, and accept its lazily initialized state. Start over if there was any."""
        self._state.check()
        before = self._state.settings()
        answer = self._call_eager(args, kwargs)
        if changed := [name for (name, a), (_, b) in zip(before, self._state.settings(), strict=False) if a != b]:
            self._refusal = (
                f"the training step sets {changed[0]}, but a replay would not: step schedulers outside of it"
            )
        if self._state.find_change():
            self._forget()
            self._state.take_snapshot()
        self._seen_keys[key] = None
        forget_oldest(self._seen_keys)
        return answer

    def _start_over(self, change: StateChange) -> None:
        if self._graphs:
            if self._recompiles is not None:
                self._recompiles.again([VaryingValue(change.subject, change.subject, VaryingKind.STATE)], at_start=True)
            hint = ". To avoid that, use a tensor on CUDA for this value" if change.is_setting else ""
            self._warn_once(f"the training step is captured again, because {change}{hint}", change.subject)
        self._forget()
        self._state.take_snapshot()
        self._code.take_snapshot()

    def _warn_once(self, text: str, subject: str = "") -> None:
        """Warn once of each subject."""
        level = logging.WARNING if self._warned.admit(subject or text) else logging.INFO
        logger.log(level, "torchwise: %s", text)

    def _call_eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return detach_tensors(self._step(*args, **kwargs))

    def _has_gpu_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        tensors = [*pytree.tensors((args, kwargs)), *self._state.parameters[:1]]
        return any(map(is_on_gpu, tensors))

    def _replay(self, recorded: RecordedStep, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parameters = self._state.parameters
        for parameter, left in zip(parameters, recorded.left, strict=True):
            if left is None and parameter.grad is not None:
                self._warn_once(
                    "a parameter has a gradient, but the step sets its gradient to None: the step runs in eager"
                )
                return self._call_eager(args, kwargs)
        self._pool.wait_for_last_replay(torch.cuda.current_device())
        with torch.no_grad():
            for parameter, entry in zip(parameters, recorded.entry, strict=True):
                if entry is not None and parameter.grad is not entry:
                    entry.zero_() if parameter.grad is None else entry.copy_(parameter.grad)
                    parameter.grad = entry
            answer = recorded.graph(args, kwargs)
        # As in an eager step: copies of weights depend on it.
        torch.autograd.graph.increment_version(self._state.written)
        for parameter, left in zip(parameters, recorded.left, strict=True):
            if parameter.grad is not left:
                parameter.grad = left
        return answer

    def _capture(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedStep:
        self._pool.renew(self._graphs)
        self._state.check()
        attempt = StepRecording(self._step, self._state)
        try:
            with explain_failure("the training step"):
                graph = self._pool.record(attempt, args, kwargs, attempt.settle)
                attempt.check()
        except BaseException:  # raised again after any error: the state must be restored first
            attempt.restore()
            raise
        if attempt.kept:
            self._warn_once(
                f"{attempt.kept} changes in Python from step to step, but a replay runs no Python: it stays"
            )
        return RecordedStep(graph, attempt.entry, [p.grad for p in attempt.parameters], make_settings_check())
