"""The values that a call copies from the CPU, kept on the GPU for the replays of its graph.

`torch.tensor([0., 1.], device="cuda")` creates a tensor on the CPU and copies it. No graph can record that, as the
memory that it reads is freed when the graph is replayed. But such numbers are the same on every call. So the warm-up
records each copy, in order, and the recorded graph copies from these tensors on the GPU. The copies must agree: other
numbers are refused, as are random numbers. Tensors that the model keeps on the CPU are recorded with their versions,
and `has_same_tensors` checks whether one was written to.

Results computed only from such numbers are the same on every call, too (`constants`). If Python reads one, it receives
the value of the warm-up, and the recording continues.

A dispatch mode observes the operators. Under a mode, a few operators give other results (pytorch/pytorch#198118), and
Dynamo compiles nothing. So this is used only for calls that cannot be recorded unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch.dispatch import ONLY_LIFT_CPU, READ_SCALAR, TorchDispatchMode
from torchwise.compile.cuda_graphs.call_state import generators
from torchwise.compile.cuda_graphs.capture_errors import is_of_capture
from torchwise.compile.cuda_graphs.host_operators import (
    LIFT,
    Constants,
    MadeTensors,
    copies_over,
    has_masks,
    one_value_where_masked,
    replace_masks,
    waits,
    with_brought,
    write_where_masked,
)
from torchwise.compile.cuda_graphs.recorded_graph import DEVICE
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.layouts import count_writes

Between = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]
"""Runs an operator that waits for the GPU between two recordings, and returns its result."""
_WHO = "recording copies from the CPU"
_OTHER = "the call copies other numbers from the CPU than the call before it, but a replay would repeat them"
_DRAWN = "the call draws random numbers on the CPU, but a replay would repeat them"
_WRITTEN = "the call writes to a tensor that its module keeps on the CPU, but a replay would not"
_lifting_lock = threading.Lock()
_lifting = 0
"""The number of contexts, in all threads, in which dispatch modes observe PyTorch's copies."""


@dataclass(frozen=True, slots=True)
class _HostTensor:
    """A tensor on the CPU, with PyTorch's count of writes to it when a call used it, or its values without a count."""

    tensor: torch.Tensor
    version: int | None
    values: torch.Tensor | None

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> _HostTensor:
        version = count_writes(tensor)
        return cls(tensor, version, tensor.clone() if version is None else None)

    def is_unchanged(self) -> bool:
        if self.values is not None:
            return torch.equal(self.tensor, self.values)
        return count_writes(self.tensor) == self.version


class HostValues:
    """The values that calls of one signature copy from the CPU.

    Attributes:
        learnt: operators that waited for the GPU without a tag that says so, with the dtypes of their inputs.
    """

    def __init__(self, device: str = DEVICE) -> None:
        self._device = device
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # copied tensors, and their copies on the GPU
        self._results: list[Any] = []
        self._kept: dict[int, _HostTensor] = {}  # kept by the model on the CPU, and used on any path through it
        self._refusal: str | None = None
        self._recorded: list[Any] = []  # tensors that graphs read from
        self.learnt: set[Any] = set()

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` for the warm-up, and for the recording while the current stream is capturing."""

        @functools.wraps(call)
        def call_under_mode(*args: Any, **kwargs: Any) -> Any:
            with self.replaying_values() if torch.cuda.is_current_stream_capturing() else self.recording_values():
                return call(*args, **kwargs)

        return call_under_mode

    def has_same_tensors(self) -> bool:
        """Whether the tensors that the model keeps on the CPU are unchanged."""
        return all(tensor.is_unchanged() for tensor in self._kept.values())

    @contextlib.contextmanager
    def recording_values(self) -> Iterator[None]:
        """Record the copies in this context, in place of those recorded before."""
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        results: list[Any] = []
        kept: dict[int, _HostTensor] = {}
        before = _generator_states()

        def bring(tensor: torch.Tensor) -> torch.Tensor:
            copies.append((tensor.detach().clone(), tensor.detach().to(self._device)))
            return copies[-1][1]

        def answer_for(func: Any, inputs: Any, args: Any, kwargs: Any) -> Any:
            answer = func(*args, **kwargs)
            results.append((kind_of(func, inputs), pytree.map_tensors(torch.Tensor.clone, answer)))
            return answer

        def keep(tensor: torch.Tensor) -> None:
            kept.setdefault(id(tensor), _HostTensor.from_tensor(tensor))

        with _lifted(), Operators(self._device, bring, answer_for, self.learnt, keep=keep):
            yield
        self._refusal = None
        if copies and _generator_states() != before:
            self._refusal = _DRAWN
        if not all(tensor.is_unchanged() for tensor in kept.values()):
            self._refusal = _WRITTEN
        self._copies, self._results = copies, results
        self._kept.update(kept)

    @contextlib.contextmanager
    def replaying_values(self, between: Between | None = None) -> Iterator[Operators]:
        """Replace the copies in this context by the recorded tensors, and refuse other copies or work on the CPU.

        `between` runs operators that wait for the GPU. Without it the recording cannot be split.
        """
        if self._refusal:
            raise UnsupportedError(self._refusal)
        copies, results = iter(self._copies), iter(self._results)

        def bring(tensor: torch.Tensor) -> torch.Tensor:
            values, gpu_copy = next(copies, (None, None))
            if values is None or gpu_copy is None or tensor.dtype != values.dtype or not torch.equal(tensor, values):
                raise UnsupportedError(_OTHER)
            return gpu_copy

        def answer_for(func: Any, inputs: Any, *_: Any) -> Any:
            kind, answer = next(results, (None, None))
            if kind != kind_of(func, inputs):
                raise UnsupportedError(_OTHER)
            return pytree.map_tensors(torch.Tensor.clone, answer)

        with _lifted(), Operators(self._device, bring, answer_for, self.learnt, between) as operators:
            yield operators
        if next(copies, None) is not None or next(results, None) is not None:
            raise UnsupportedError(_OTHER)
        self._recorded += [self._copies, self._results]


class Operators(TorchDispatchMode):
    """Observes each operator of a call, and replaces those that involve the CPU.

    Args:
        device: the device of the graphs.
        bring: takes a tensor on the CPU and returns it on the GPU.
        answer_for: returns the result of an operator that waits for the GPU, the same on every call.
        learnt: as in `HostValues`.
        between: as in `HostValues.replaying_values`.
        keep: called with tensors on the CPU that the call did not create.
    """

    def __init__(
        self,
        device: str,
        bring: Callable[[torch.Tensor], torch.Tensor],
        answer_for: Callable[..., Any],
        learnt: set[Any],
        between: Between | None = None,
        keep: Callable[[torch.Tensor], None] = lambda _: None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._bring = bring
        self._answer_for = answer_for
        self._learnt = learnt
        self._between = between
        self._keep = keep
        self._constants = Constants()
        self._created = MadeTensors()
        self._is_paused = False
        # The positions of each mask's True elements.
        self._found: dict[int, tuple[MadeTensors | None, torch.Tensor]] = {}

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the operators in this context alone, as they belong to the recording."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def constant(self, scalar: torch.Tensor) -> Any:
        """Return the number in a tensor that is the same on every call, or None if it is not."""
        if not self._constants.holds(scalar):
            return None
        return self._answer_for(READ_SCALAR, [scalar], (scalar,), {})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator, with the values that it needs from the CPU."""
        kwargs = kwargs or {}
        if self._is_paused:
            return func(*args, **kwargs)
        inputs = pytree.tensors((args, kwargs))
        if func is not LIFT:
            for tensor in inputs:
                if tensor.is_cpu and not self._created.has(tensor):
                    self._keep(tensor)
        if one_value_where_masked(func, args):
            return self._note_result(func, inputs, write_where_masked(*args))
        if has_masks(func, args):
            args = replace_masks(args, self._positions)
            inputs = pytree.tensors((args, kwargs))
        if copies_over(func, args, kwargs, self._device):
            args = with_brought(args, self._copy_to_device)
            inputs = pytree.tensors((args, kwargs))
        return self._note_result(func, inputs, self._result(func, inputs, args, kwargs))

    def _note_result(self, func: Any, inputs: Sequence[torch.Tensor], result: Any) -> Any:
        results = pytree.tensors(result)
        self._constants.note(func, inputs, results)
        for tensor in results:
            if tensor.is_cpu:
                self._created.add(tensor)
        return result

    def _copy_to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        gpu_copy = self._bring(tensor)
        self._constants.add(gpu_copy)
        return gpu_copy

    def _positions(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the positions of a mask's True elements, read once if the mask indexes several tensors."""
        known, found = self._found.get(id(mask), (None, mask))
        if known is None or not known.holds(mask):
            known = MadeTensors()
            known.add(mask)
            nonzero = torch.ops.aten.nonzero.default
            found = self._note_result(nonzero, [mask], self._result(nonzero, [mask], (mask,), {}))
            self._found[id(mask)] = known, found
        return found

    def _result(
        self, func: Any, inputs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        kind = kind_of(func, inputs)
        if waits(func, args, kwargs, self._device) or kind in self._learnt:
            if all(map(self._constants.holds, inputs)):
                return self._answer_for(func, inputs, args, kwargs)
            if self._between is not None:
                return self._between(func, args, kwargs)
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if self._between is not None and is_of_capture(error):
                self._learnt.add(kind)
            raise


@contextlib.contextmanager
def _lifted() -> Iterator[None]:
    """Have `torch.tensor(…, device="cuda")` dispatch two operators, the second of which copies."""
    global _lifting
    set_lifts = ONLY_LIFT_CPU.get(_WHO)
    with _lifting_lock:
        _lifting += 1
        set_lifts(True)
    try:
        yield
    finally:
        with _lifting_lock:
            _lifting -= 1
            set_lifts(_lifting > 0)


def kind_of(func: Any, inputs: Sequence[torch.Tensor]) -> Any:
    """Return a key that distinguishes operators by themselves, and by the dtypes and ranks of their inputs."""
    return func, *((tensor.dtype, tensor.dim()) for tensor in inputs)


def _generator_states() -> Any:
    """Return the states of all generators that draw random numbers on the CPU."""
    return generators(), torch.get_rng_state().tolist()
