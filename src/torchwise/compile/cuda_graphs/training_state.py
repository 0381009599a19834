"""The state that a training step writes to, besides its batch, and one attempt at recording the step.

The state is found, checked for changes, and restored. An attempt warms up under observation, and restores the state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch

from torchwise.compile.cuda_graphs.call_state import buffers_of, find_difference, read_python_state
from torchwise.compile.cuda_graphs.capture_errors import make_wait_error, record_waits
from torchwise.compile.cuda_graphs.recorded_graph import is_on_gpu
from torchwise.compile.guards.module_guard import ModuleGuard
from torchwise.compile.signature import is_equal, is_plain
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

_address = torch.Tensor.data_ptr
_flat = chain.from_iterable
_requires_grad = attrgetter("requires_grad")
_values = dict.values


def _scaler_tensors(attributes: dict[str, Any]) -> tuple[Any, Any]:
    return attributes.get("_scale"), attributes.get("_growth_tracker")


Slot = tuple[dict[Any, Any], Any, Any, str]
"""A dict, a key, its former value, and its name in messages."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of the state or the code of a training step: its subject, and the change in words, with the values.

    `is_setting` tells of a number in a parameter group of an optimizer.
    """

    subject: str
    text: str
    is_setting: bool = False

    def __str__(self) -> str:
        return self.text


class TrainingState:
    """The parameters, buffers, optimizer states and gradient scalers of a training step.

    All use of private names of optimizers and of GradScaler sits here.

    Attributes:
        parameters: every parameter of the modules and of the optimizers, once, as of the last snapshot.
        written: these parameters and the modules' buffers.
    """

    def __init__(
        self,
        modules: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        scalers: Sequence[torch.amp.GradScaler],
    ) -> None:
        self._modules = torch.nn.ModuleList(modules)
        self._optimizers = optimizers
        self._scalers = scalers
        for optimizer in optimizers:  # a capturable one would warn about eager calls
            vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True
        self._guard = ModuleGuard(self._modules)
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Take the present memory of the state, and the present numbers, as the reference."""
        self._guard.take_snapshot()
        self._settings = list(self._group_slots())
        self._states = [slot for slot in self._state_slots() if slot[2] is not None]
        self._sizes = self._counts()
        self._kept = self._holders()  # kept alive, so that no other object gets their identity
        self._pointers = [slot[2].data_ptr() for slot in self._tensors()]
        trained = [p for group in self._groups() for p in group["params"]]
        self.parameters = list(dict.fromkeys([*self._modules.parameters(), *trained]))
        self.written: list[torch.Tensor] = [*self.parameters, *self._modules.buffers()]
        self._trained = [p.requires_grad for p in self.parameters]
        self._unchanged = self._make_quick_check()

    def find_change(self) -> StateChange | None:
        """Return the change since the last snapshot, or None. Values of tensors are not compared."""
        if self._guard.has_changed():
            return _changed("the mode, the structure or the memory of a module changed")
        if self._unchanged():
            return None
        if [p.requires_grad for p in self.parameters] != self._trained:
            return _changed("requires_grad of a parameter changed")
        if self._counts() != self._sizes or [*map(id, self._holders())] != [*map(id, self._kept)]:
            return _changed("an optimizer or a scaler has other groups or state")
        settings = len(self._settings)
        for position, (holder, key, was, name) in enumerate((*self._settings, *self._states)):
            now = holder.get(key)
            if now is not was and not is_equal(now, was):
                text = f"{name} was {_format_value(was)} and is {_format_value(now)}"
                return StateChange(name, text, is_setting=position < settings)
        if [slot[2].data_ptr() for slot in self._tensors()] != self._pointers:
            return _changed("the memory of an optimizer's state moved")
        return None

    def _make_quick_check(self) -> Callable[[], bool]:
        """Return a fast check, nearly all of it in C, that optimizers and scalers are unchanged.

        It runs on every step, and takes a tenth of the time of the full check.
        """
        lists = [optimizer.param_groups for optimizer in self._optimizers]
        groups = [*_flat(lists)]
        parameters = [group["params"] for group in groups]
        all_lists = [*lists, *parameters]
        dicts: list[dict[Any, Any]] = [*(optimizer.state for optimizer in self._optimizers), *groups]
        dicts += [state for o in self._optimizers for state in o.state.values() if isinstance(state, dict)]
        scales = [vars(scaler) for scaler in self._scalers]
        known = [*_flat(map(_values, dicts)), *_flat(all_lists), *_flat(map(_scaler_tensors, scales))]
        holders: list[Sized] = [*dicts, *all_lists]
        lengths = [*map(len, holders)]
        tensors = [slot[2] for slot in self._tensors()]
        states = [optimizer.state for optimizer in self._optimizers]
        pointers, trained = self._pointers, self._trained

        def is_unchanged() -> bool:
            now = chain(_flat(map(_values, dicts)), _flat(all_lists), _flat(map(_scaler_tensors, scales)))
            return (
                [*map(len, holders)] == lengths
                and all(map(is_, now, known))
                and all(
                    o.state is s and o.param_groups is g
                    for o, s, g in zip(self._optimizers, states, lists, strict=True)
                )
                and [*map(_address, tensors)] == pointers
                and [*map(_requires_grad, self.parameters)] == trained
            )

        return is_unchanged

    def settings(self) -> list[Any]:
        """Return the numbers in the groups, and the version counter of each tensor there, to compare."""
        values = [(name, was) for _, _, was, name in self._group_slots()]
        return [(name, v._version if isinstance(v, torch.Tensor) else repr(v)) for name, v in values]

    def check(self) -> None:
        """Refuse state that a graph cannot update, as of the last snapshot."""
        for number, optimizer in enumerate(self._optimizers):
            for group in optimizer.param_groups:
                if group.get("capturable") is False:
                    raise UnsupportedError(
                        f"optimizers[{number}] is {type(optimizer).__name__} with capturable=False, which counts its "
                        "steps on the CPU: create it with capturable=True"
                    )
        if outside := [p for p in self.parameters if not is_on_gpu(p)]:
            raise UnsupportedError(f"a parameter is on {outside[0].device}, but a graph trains only parameters on CUDA")
        for _, _, value, name in (*self._settings, *self._states):
            if isinstance(value, torch.Tensor) and not is_on_gpu(value):
                raise UnsupportedError(
                    f"{name} is on {value.device}, where a replay neither reads nor updates it: put it on CUDA"
                )

    def snapshot(self) -> Callable[[], None]:
        """Copy all values, and return a function that restores them, in place, bit by bit."""
        tensors = [*self.parameters, *(slot[2] for slot in self._tensors())]
        kept, buffers = [t.detach().clone() for t in tensors], list(buffers_of(self._modules))
        stages = [copy.deepcopy(vars(scaler).get("_per_optimizer_states")) for scaler in self._scalers]
        names = [set(vars(optimizer)) for optimizer in self._optimizers]
        numbers = [slot for slot in (*self._settings, *self._states) if is_plain(slot[2])]

        def restore() -> None:
            with torch.no_grad():
                for tensor, value in zip(tensors, kept, strict=True):
                    tensor.copy_(value)
                for buffer in buffers:
                    buffer.put_back()
            for holder, key, value, _ in numbers:
                holder[key] = value
            for scaler, stage in zip(self._scalers, stages, strict=True):
                if stage is not None:
                    vars(scaler)["_per_optimizer_states"] = copy.deepcopy(stage)
            for optimizer, known in zip(self._optimizers, names, strict=True):
                for name in {"grad_scale", "found_inf"} - known:  # set by the scaler, if a step failed
                    vars(optimizer).pop(name, None)

        return restore

    def _tensors(self) -> list[Slot]:
        return [slot for slot in (*self._settings, *self._states) if isinstance(slot[2], torch.Tensor)]

    def _group_slots(self) -> Iterator[Slot]:
        for number, optimizer in enumerate(self._optimizers):
            for position, group in enumerate(optimizer.param_groups):
                for key in group:
                    if key != "params":
                        yield group, key, group[key], f"{key} of group {position} of optimizers[{number}]"

    def _state_slots(self) -> Iterator[Slot]:
        for number, optimizer in enumerate(self._optimizers):
            for parameter, state in optimizer.state.items():
                yield optimizer.state, parameter, state, f"the state of optimizers[{number}]"
                if isinstance(state, dict):
                    for key, value in state.items():
                        yield state, key, value, f"the state {key!r} of optimizers[{number}]"
        for scaler in self._scalers:
            for key in ("_scale", "_growth_tracker"):
                yield vars(scaler), key, vars(scaler).get(key), f"{key.strip('_')} of the scaler"

    def _holders(self) -> list[Any]:
        return [*(optimizer.state for optimizer in self._optimizers), *self._groups()]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _counts(self) -> list[int]:
        states = [state for optimizer in self._optimizers for state in optimizer.state.values()]
        scales = sum(vars(scaler).get("_scale") is not None for scaler in self._scalers)
        trained = [id(p) for group in self._groups() for p in group["params"]]
        return [scales, len(states), *(len(s) for s in states if isinstance(s, dict)), *trained]


def _changed(text: str) -> StateChange:
    return StateChange(text, text)


def _format_value(value: Any) -> str:
    return repr(value) if is_plain(value) else f"a {type(value).__name__}"


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
        _refuse_change(reason)
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
        _refuse_change(self._state.find_change())
        if self._state.settings() != self._settings:
            raise UnsupportedError("the training step sets a tensor of param_groups: step schedulers outside of it")
        if not torch.equal(torch.get_rng_state(), self._cpu_numbers):
            raise UnsupportedError("the training step draws random numbers on the CPU, but a replay would repeat them")
        if any(g is not None and g.requires_grad for g in (p.grad for p in self.parameters)):
            raise UnsupportedError("a gradient carries a graph of its own (create_graph=True): detach it in the step")


def _refuse_change(change: StateChange | None) -> None:
    if change is not None:
        raise UnsupportedError(f"the training step changes its own state, as {change}: do that outside of it")


def detach_tensors(answer: Any) -> Any:
    """Detach every tensor from its autograd graph, which would keep the step's memory."""
    return pytree.map_tensors(torch.Tensor.detach, answer)
