"""One attempt at recording a training step: warm up under observation, and restore the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.compile.cuda_graphs.capture_errors import make_wait_error, record_waits
from torchwise.compile.cuda_graphs.python_state import find_difference, read_python_state
from torchwise.compile.cuda_graphs.training_state import TrainingState
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

Grads = list[torch.Tensor | None]
"""The gradient of each parameter."""


class StepRecording:
    """One recording: the step that `record` calls, and the state to restore afterwards.

    Attributes:
        parameters: the parameters that it trains.
        entry: for each parameter, the gradient tensor that the recorded step reads, or None.
        kept: a Python value that the step changes from call to call, or None.
    """

    def __init__(self, step: Callable[..., Any], state: TrainingState) -> None:
        self._step = step
        self._state = state
        self.parameters = state.parameters
        self._before: Grads = [p.grad for p in self.parameters]
        self._values = [None if g is None else g.detach().clone() for g in self._before]
        self._restore = state.snapshot()
        self._cpu_numbers = torch.get_rng_state()
        self._recording = False
        self.kept: str | None = None
        self._left: list[Grads] = []  # by the last two calls
        self._waits: list[str] = []
        self.entry: Grads = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step, under observation while warming up."""
        torch.clear_autocast_cache()  # of an autocast around the step: weights must be cast inside the graph
        try:
            if self._recording:
                return detach_tensors(self._step(*args, **kwargs))
            before = read_python_state(self._step)
            with record_waits() as self._waits:
                answer = detach_tensors(self._step(*args, **kwargs))
            self.kept = find_difference(before, read_python_state(self._step))
        finally:
            torch.clear_autocast_cache()
        self._left = [*self._left[-1:], [p.grad for p in self.parameters]]
        return answer

    def settle(self) -> None:
        """End the warm-up: restore the state, and set the gradients that the step reads.

        If two calls leave the same gradient tensor, the second one wrote to it in place, and may have read it. If they
        leave different ones, the second call replaced the first one's.
        """
        reason = self._state.find_change()
        self.restore()
        if self._waits:
            raise make_wait_error(self._waits, "the training step")
        if reason:
            raise UnsupportedError(f"the training step changes its own state, as {reason}: do that outside of it")
        first, second = self._left
        for parameter, before, was, now in zip(self.parameters, self._before, first, second, strict=True):
            if now is not None and now.requires_grad and now is not was:
                raise UnsupportedError(
                    "a gradient carries a graph of its own (create_graph=True): detach it before the step ends"
                )
            entry = None
            if now is not None and now is was:
                entry = torch.zeros_like(now) if before is None else before
            parameter.grad = entry
            self.entry.append(entry)
        self._settings = self._state.settings()
        self._cpu_numbers = torch.get_rng_state()
        self._recording = True

    def restore(self) -> None:
        """Restore values, gradients and the CPU's random numbers. `record` restores those of the GPU."""
        self._restore()
        torch.set_rng_state(self._cpu_numbers)
        with torch.no_grad():
            for parameter, grad, values in zip(self.parameters, self._before, self._values, strict=True):
                if grad is not None and values is not None:
                    grad.copy_(values)
                parameter.grad = grad

    def check(self) -> None:
        """Refuse a step with effects that a replay does not have."""
        if reason := self._state.find_change():
            raise UnsupportedError(f"the training step changes its own state, as {reason}: do that outside of it")
        if self._state.settings() != self._settings:
            raise UnsupportedError("the training step sets a tensor of param_groups: step schedulers outside of it")
        if not torch.equal(torch.get_rng_state(), self._cpu_numbers):
            raise UnsupportedError("the training step draws random numbers on the CPU, but a replay would repeat them")
        if any(g is not None and g.requires_grad for g in (p.grad for p in self.parameters)):
            raise UnsupportedError("a gradient carries a graph of its own (create_graph=True): detach it in the step")


def detach_tensors(answer: Any) -> Any:
    """Detach every tensor from its autograd graph, which would keep the step's memory."""
    return pytree.map_tensors(torch.Tensor.detach, answer)
