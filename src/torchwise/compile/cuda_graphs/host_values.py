"""The values that a call copies from the CPU, kept on the GPU for the replays of its graph.

`torch.tensor([0., 1.], device="cuda")` makes a tensor on the CPU and copies it. No graph can record that, as the memory
that it reads is gone when the graph is replayed. But such numbers are the same on every call. So while a call warms up
each copy is noted, in order. While it is recorded the graph copies from the noted tensors, on the GPU. It has to be the
same copy: other numbers in its place are refused, as are numbers that are drawn. Tensors that the model keeps on the
CPU are noted with their versions, and `has_same_tensors` tells whether one was written to.

Results computed from such numbers alone are the same on every call, too (`constants`). So if Python asks for one, it
gets the answer of the warm-up, and the recording goes on.

A dispatch mode sees the operators. Under one, a few of them answer otherwise than without (pytorch/pytorch#198118), and
Dynamo compiles nothing. So this is for calls that cannot be recorded as they are.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchwise.compile.cuda_graphs.capture_errors import is_of_capture
from torchwise.compile.cuda_graphs.constants import LIFT, Constants, MadeTensors, version_of
from torchwise.compile.cuda_graphs.graph_key import DEVICE
from torchwise.compile.cuda_graphs.host_operators import (
    copies_over,
    has_masks,
    one_value_where_masked,
    replace_masks,
    waits,
    with_brought,
    write_where_masked,
)
from torchwise.compile.cuda_graphs.python_state import generators
from torchwise.compile.private import look_up
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

Between = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]
"""Runs an operator that waits for the GPU between two recordings, and returns its result."""
_WHO = "recording what is copied from the CPU"
_OTHER = "the call copies other numbers from the CPU than the call before it, where a replay repeats them"
_DRAWN = "the call draws random numbers on the CPU, which a replay repeats"
_WRITTEN = "the call writes to a tensor that its module keeps on the CPU, which a replay does not"
_lifting_lock = threading.Lock()
_lifting = 0
"""How many contexts, in any thread, have PyTorch copy in sight of a mode."""


@dataclass(frozen=True, slots=True)
class _HostTensor:
    """A tensor of the CPU as it was when a call used it.

    Attributes:
        tensor: the tensor itself.
        version: PyTorch's count of writes to it, or None if it keeps none.
        values: its values, if there is no count.
    """

    tensor: torch.Tensor
    version: int | None
    values: torch.Tensor | None

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> _HostTensor:
        version = version_of(tensor)
        return cls(tensor, version, tensor.clone() if version is None else None)

    def is_unchanged(self) -> bool:
        if self.values is not None:
            return torch.equal(self.tensor, self.values)
        return version_of(self.tensor) == self.version


class HostValues:
    """The values that calls of one signature copy from the CPU.

    Args:
        device: the device of the graphs.

    Attributes:
        learnt: operators that were seen to wait for the GPU although nothing says so, with the dtypes of their inputs.
    """

    def __init__(self, device: str = DEVICE) -> None:
        self._device = device
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # copied tensors, and the same on the GPU
        self._told: list[Any] = []
        self._kept: dict[int, _HostTensor] = {}  # kept by the model on the CPU, and used on any of the ways through it
        self._refusal: str | None = None
        self._recorded: list[Any] = []  # tensors that graphs read from
        self.learnt: set[Any] = set()

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` for warming up, and for being recorded while the current stream is."""

        @functools.wraps(call)
        def call_under_mode(*args: Any, **kwargs: Any) -> Any:
            with self.answering() if torch.cuda.is_current_stream_capturing() else self.noting():
                return call(*args, **kwargs)

        return call_under_mode

    def has_same_tensors(self) -> bool:
        """Whether the tensors that the model keeps on the CPU are unchanged."""
        return all(seen.is_unchanged() for seen in self._kept.values())

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Note the copies made meanwhile, in place of those noted before."""
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        told: list[Any] = []
        kept: dict[int, _HostTensor] = {}
        before = _generator_states()

        def bring(tensor: torch.Tensor) -> torch.Tensor:
            copies.append((tensor.detach().clone(), tensor.detach().to(self._device)))
            return copies[-1][1]

        def tell(func: Any, given: Any, args: Any, kwargs: Any) -> Any:
            answer = func(*args, **kwargs)
            told.append((kind_of(func, given), pytree.map_tensors(torch.Tensor.clone, answer)))
            return answer

        def keep(tensor: torch.Tensor) -> None:
            kept.setdefault(id(tensor), _HostTensor.from_tensor(tensor))

        with _lifted(), Operators(self._device, bring, tell, self.learnt, keep=keep):
            yield
        self._refusal = None
        if copies and _generator_states() != before:
            self._refusal = _DRAWN
        if not all(seen.is_unchanged() for seen in kept.values()):
            self._refusal = _WRITTEN
        self._copies, self._told = copies, told
        self._kept.update(kept)

    @contextlib.contextmanager
    def answering(self, between: Between | None = None) -> Iterator[Operators]:
        """Replace the copies made meanwhile by the noted tensors.

        Args:
            between: runs operators that wait for the GPU, or None if the recording cannot be cut.

        Raises:
            UnsupportedError: other numbers are copied than were noted, or the work on the CPU is not the same on every
                call.
        """
        if self._refusal:
            raise UnsupportedError(self._refusal)
        copies, told = iter(self._copies), iter(self._told)

        def bring(tensor: torch.Tensor) -> torch.Tensor:
            values, twin = next(copies, (None, None))
            if values is None or twin is None or tensor.dtype != values.dtype or not torch.equal(tensor, values):
                raise UnsupportedError(_OTHER)
            return twin

        def tell(func: Any, given: Any, *_: Any) -> Any:
            kind, answer = next(told, (None, None))
            if kind != kind_of(func, given):
                raise UnsupportedError(_OTHER)
            return pytree.map_tensors(torch.Tensor.clone, answer)

        with _lifted(), Operators(self._device, bring, tell, self.learnt, between) as operators:
            yield operators
        if next(copies, None) is not None or next(told, None) is not None:
            raise UnsupportedError(_OTHER)
        self._recorded += [self._copies, self._told]


class Operators(TorchDispatchMode):
    """Sees each operator of a call, and takes part in those that involve the CPU.

    Args:
        device: the device of the graphs.
        bring: takes a tensor of the CPU and returns it on the GPU.
        tell: gives the answer, the same on every call, to an operator that waits for the GPU.
        learnt: as in `HostValues`.
        between: as in `HostValues.answering`.
        keep: is told of tensors of the CPU that the call did not make.
    """

    def __init__(
        self,
        device: str,
        bring: Callable[[torch.Tensor], torch.Tensor],
        tell: Callable[..., Any],
        learnt: set[Any],
        between: Between | None = None,
        keep: Callable[[torch.Tensor], None] = lambda _: None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._bring = bring
        self._tell = tell
        self._learnt = learnt
        self._between = between
        self._keep = keep
        self._constants = Constants()
        self._made = MadeTensors()
        self._is_paused = False
        self._found: dict[int, tuple[MadeTensors | None, torch.Tensor]] = {}  # the positions that each mask marks

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave operators alone meanwhile: they are the recording's own."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def constant(self, question: torch.Tensor) -> Any:
        """Return the number in a tensor that is the same on every call, or None if it is not."""
        if not self._constants.holds(question):
            return None
        return self._tell(torch.ops.aten._local_scalar_dense.default, [question], (question,), {})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator, with the values that it needs from the CPU."""
        kwargs = kwargs or {}
        if self._is_paused:
            return func(*args, **kwargs)
        given = pytree.tensors((args, kwargs))
        if func is not LIFT:
            for tensor in given:
                if tensor.is_cpu and not self._made.has(tensor):
                    self._keep(tensor)
        if one_value_where_masked(func, args):
            return self._note_result(func, given, write_where_masked(*args))
        if has_masks(func, args):
            args = replace_masks(args, self._positions)
            given = pytree.tensors((args, kwargs))
        if copies_over(func, args, kwargs, self._device):
            args = with_brought(args, self._copy_to_device)
            given = pytree.tensors((args, kwargs))
        return self._note_result(func, given, self._result(func, given, args, kwargs))

    def _note_result(self, func: Any, given: Sequence[torch.Tensor], result: Any) -> Any:
        results = pytree.tensors(result)
        self._constants.note(func, given, results)
        for tensor in results:
            if tensor.is_cpu:
                self._made.add(tensor)
        return result

    def _copy_to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        twin = self._bring(tensor)
        self._constants.add(twin)
        return twin

    def _positions(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the positions that a mask marks, which are asked for once if it is the index of several tensors."""
        known, found = self._found.get(id(mask), (None, mask))
        if known is None or not known.holds(mask):
            known = MadeTensors()
            known.add(mask)
            nonzero = torch.ops.aten.nonzero.default
            found = self._note_result(nonzero, [mask], self._result(nonzero, [mask], (mask,), {}))
            self._found[id(mask)] = known, found
        return found

    def _result(
        self, func: Any, given: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        kind = kind_of(func, given)
        if waits(func, args, kwargs, self._device) or kind in self._learnt:
            if all(map(self._constants.holds, given)):
                return self._tell(func, given, args, kwargs)
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
    """Have `torch.tensor(…, device="cuda")` be two operators, of which the second one copies.

    Raises:
        UnsupportedError: this torch cannot.
    """
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(more: int) -> None:
    global _lifting
    set_lifts = look_up(_WHO, ("torch._C", "_set_only_lift_cpu_tensors"))
    with _lifting_lock:
        _lifting += more
        set_lifts(_lifting > 0)


def kind_of(func: Any, given: Sequence[torch.Tensor]) -> Any:
    """Return a key that tells operators apart: by themselves, and by the look of their inputs."""
    return func, *((tensor.dtype, tensor.dim()) for tensor in given)


def _generator_states() -> Any:
    """Return the states of all generators that draw random numbers on the CPU."""
    return generators(), torch.get_rng_state().tolist()
