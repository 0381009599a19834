"""Graphs of one signature that read inputs and write outputs directly in the caller's memory.

A graph replays fixed addresses. Copying inputs to them and outputs from them takes the host longer than the replay
itself. The copies take 8.6 and 7.7 microseconds, and the replay 2.4 (one H200, torch 2.11). But a steady program uses
the same addresses again and again, as PyTorch's allocator reuses the memory freed last. So a call that comes a second
time with the addresses of an earlier one is recorded again at these. From then on it is replayed without a copy. That
is safe with any owner of the memory. It holds the inputs of this call, and outputs are new tensors as usual.

In other programs some addresses stay, and others never come again: a decoding step has its cache at one place, and each
token at another. Then a graph is recorded that reads and writes the former in place, and copies the rest.

Source: `mark_static_address` of PyTorch, and the static inputs of its CUDA-graph trees, which are only for weights.
"""

from __future__ import annotations

import functools
import logging
import operator
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchwise._torch import dispatch
from torchwise._torch.dispatch import copy_each
from torchwise._torch.native import Replay
from torchwise.compile.cuda_graphs.compile_freeze import is_in_frozen_call
from torchwise.compile.cuda_graphs.recorded_graph import Graph, tensors_of
from torchwise.compile.signature import is_equal
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.pytree import PLAIN

SETTLING_CALLS = 24
"""Calls of a signature in which graphs are recorded. Later calls never wait for a recording."""
MAX_GRAPHS = 6
"""Maximum number of graphs for one signature. The addresses of a program that needs more do not repeat."""
MIN_STEADY_CALLS = 8
"""Calls in a row with an input at one address after which it is taken to stay there."""

logger = logging.getLogger("torchwise")

FIRST = operator.itemgetter(0)
"""Packs the one output of a call that returns a tensor."""
Maker = Callable[[], torch.Tensor]
"""Allocates a tensor."""
_address = torch.Tensor.data_ptr

Addresses = tuple[int, ...]
Recorded = tuple[Callable[[], None], Any]
"""A replay of a call in place, and its outputs if they are borrowed."""
Recorder = Callable[[tuple[Any, ...], Mapping[str, Any], list[torch.Tensor] | None], Recorded]
"""Records a call on its own arguments, with its outputs copied to the listed tensors, if there is a list."""


class RecordedAnswers(ABC):
    """The answers to calls of one signature.

    Attributes:
        settled: returns whether PyTorch's settings are still those of the recording.
        dropped: whether it is freed, and may no longer answer.
        written: positions of the inputs that calls write to.
        borrow: whether the graphs' own outputs are returned, which a later call overwrites.
    """

    def __init__(self, settled: Callable[[], bool], written: Sequence[int] = (), *, borrow: bool = False) -> None:
        self.settled = settled
        self.dropped = False
        self.written = written
        self.borrow = borrow

    @abstractmethod
    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], record: Recorder) -> Any:
        """Answer a call."""

    @abstractmethod
    def drop(self) -> None:
        """Free the graphs, even if this object is still referenced. It must not be called afterwards."""
        self.dropped = True


class MixedGraph:
    """A graph that reads and writes some inputs where they lie, and copies of the others.

    Args:
        recorded: its replay, and its own outputs in their containers.
        inputs: the tensors that it reads, in the order of `tensors_of`.
        steady: the positions of those that are read in place.
        written: the positions of those that it writes to.

    Attributes:
        replay: launches it.
        borrowed: its own outputs in their containers.
        outputs: their tensors, in the order of `pytree.tensors`.
    """

    def __init__(
        self,
        recorded: Recorded,
        inputs: Sequence[torch.Tensor],
        steady: Sequence[int],
        written: Sequence[int],
    ) -> None:
        self.replay, self.borrowed = recorded
        self.outputs = pytree.tensors(self.borrowed)
        self._addresses = [(place, inputs[place].data_ptr()) for place in steady]
        self._others = [place for place in range(len(inputs)) if place not in steady]
        self._copies = [inputs[place] for place in self._others]
        self._written = [place for place in written if place in steady]
        self._back = [(place, inputs[place]) for place in written if place not in steady]

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the inputs that it reads in place are there."""
        return all(inputs[place].data_ptr() == address for place, address in self._addresses)

    def run(self, inputs: Sequence[torch.Tensor]) -> None:
        """Copy the other inputs in, replay, and copy those back that it writes to."""
        copy_each(self._copies, [inputs[place] for place in self._others])
        self.replay()
        copy_each([inputs[place] for place, _ in self._back], [copy for _, copy in self._back])
        _count_writes(inputs, self._written)


class Replays(RecordedAnswers):
    """The answers to calls of one signature: a graph that copies, and graphs that need no copies, or fewer.

    `places` are the positions of the tensors in the arguments of every such call, if they are flat.
    """

    def __init__(
        self, graph: Graph, settled: Callable[[], bool], places: list[int] | None = None, *, borrow: bool = False
    ) -> None:
        super().__init__(settled, graph.written, borrow=borrow)
        self.graph = graph
        self._places = places
        self._handed_to: weakref.WeakSet[Replay] = weakref.WeakSet()
        self._outputs = pytree.tensors(graph.outputs)
        self._new = NewOutputs([] if borrow else self._outputs)
        self._packed = packer(graph.outputs)
        self._in_place: dict[Addresses, Recorded] = {}
        self._mixed: MixedGraph | None = None
        self._seen_addresses: set[Addresses] = set()
        self._last_addresses: Addresses = ()
        self._stays = [0] * len(graph.inputs)  # calls in a row with an input at its last address
        self._is_ordinary = all(map(_is_ordinary, (*graph.inputs, *self._outputs)))
        self._settling = SETTLING_CALLS if self._is_ordinary else 0

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], record: Recorder) -> Any:
        """Answer by a replay. The caller may keep outputs, unless they are borrowed. Inputs are written as in the call.

        `record` records graphs in place, and is passed on each call. As an attribute it would form a reference cycle.
        The garbage collector could then free graphs during another recording, which would break that recording.
        """
        if not self._is_ordinary:
            return self.graph(args, kwargs, borrow=self.borrow)
        inputs = tensors_of(args, kwargs) if self._places is None else [args[place] for place in self._places]
        results = self._new()
        recorded = None
        if self._in_place or self._settling:
            addresses = (*map(_address, inputs), *map(_address, results))
            recorded = self._in_place.get(addresses)
            if recorded is None and self._settling and not is_in_frozen_call():
                recorded = self._settle(addresses, args, kwargs, results, record)
        if recorded is None and (mixed := self._mixed) is not None and mixed.fits(inputs):
            mixed.run(inputs)
            if self.borrow:
                return mixed.borrowed
            copy_each(results, mixed.outputs)
            return self._packed(results)
        if recorded is None:
            self.graph.run(inputs)
            if self.borrow:
                return self.graph.outputs
            copy_each(results, self._outputs)
            return self._packed(results)
        replay, borrowed = recorded
        replay()
        _count_writes(inputs, self.written)
        return borrowed if self.borrow else self._packed(results)

    def hand_over(self, replay: Replay, *, writes: bool, device: int) -> None:
        """Have compiled code answer the calls that a graph in place answers. It finds graphs that come later, too.

        Args:
            replay: the compiled code.
            writes: whether the call writes to its module.
            device: the number of the current GPU in such calls.
        """
        if self.dropped or not self._is_ordinary or self._places is None or self._new.device not in (None, device):
            return
        self._handed_to.add(replay)
        replay.take(
            self._in_place,
            tuple(self._places),
            tuple(self._places[place] for place in self.written),
            tuple(self._new.makers),
            None if self._packed is FIRST else self._packed,
            self.settled,
            self.borrow,
            bool(writes or self.written),
        )

    def drop(self) -> None:
        """Free the graphs. It must not be called afterwards."""
        super().drop()
        self._in_place.clear()
        for replay in self._handed_to:
            replay.take()
        self._mixed = None
        self._outputs, self._new, self._packed = [], NewOutputs([]), list
        self.graph = Graph(_do_nothing, [], None, [])

    def _settle(
        self,
        addresses: Addresses,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        results: list[torch.Tensor],
        record: Recorder,
    ) -> Recorded | None:
        """Record addresses that come a second time, and return the replay. The first time they are only remembered.

        At the end, a graph is recorded for the inputs that stayed where they are, if there are any.
        """
        self._settling -= 1
        self._stays = [
            calls + 1 if old == new else 0
            for calls, old, new in zip(self._stays, self._last_addresses or addresses, addresses, strict=False)
        ]
        self._last_addresses = addresses
        is_new = addresses not in self._seen_addresses
        self._seen_addresses.add(addresses)
        try:
            if is_new or len(self._in_place) >= MAX_GRAPHS:
                if self._settling == 0:
                    self._record_mixed(args, kwargs, record)
                return None
            if not all(map(_is_ordinary, tensors_of(args, kwargs))):
                return None
            recorded = self._in_place[addresses] = record(args, kwargs, None if self.borrow else results)
        except Exception as error:  # after any error the graph that copies answers
            logger.debug("torchwise: a call is replayed with copies, as recording it in place failed", exc_info=error)
            self._settling = 0
            return None
        return recorded

    def _record_mixed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], record: Recorder) -> None:
        """Record a graph for the inputs that stayed where they are, unless its outputs lie in their memory."""
        given = tensors_of(args, kwargs)
        steady = [place for place, calls in enumerate(self._stays) if calls >= MIN_STEADY_CALLS]
        if not steady or not all(map(_is_ordinary, given)):
            return
        inputs = [given[place] if place in steady else copy for place, copy in enumerate(self.graph.inputs)]
        following = iter(inputs)
        args, kwargs = pytree.map_tensors(lambda _: next(following), (args, dict(kwargs)))
        recorded = record(args, kwargs, None)
        in_place = [inputs[place] for place in steady]
        if self._gives_alike(recorded[1]) and not _share_memory(pytree.tensors(recorded[1]), in_place):
            self._mixed = MixedGraph(recorded, inputs, steady, self.written)

    def _gives_alike(self, outputs: Any) -> bool:
        """Whether outputs have the form of the first recording's. A call may read anything that changed since."""
        tensors = pytree.tensors(outputs)
        if len(tensors) != len(self._outputs) or pytree.form(outputs) != pytree.form(self.graph.outputs):
            return False
        now, before = (_list_other_leaves(one) for one in (outputs, self.graph.outputs))
        return (
            all(map(_is_like, tensors, self._outputs)) and len(now) == len(before) and all(map(is_equal, now, before))
        )


def _is_like(new: torch.Tensor, old: torch.Tensor) -> bool:
    return _is_ordinary(new) and (new.shape, new.dtype, new.device) == (old.shape, old.dtype, old.device)


def _list_other_leaves(outputs: Any) -> list[Any]:
    return [leaf for _, leaf in pytree.list_named_leaves(outputs) if not isinstance(leaf, torch.Tensor)]


def _share_memory(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether an output lies in an input's memory, which a graph that is kept would keep from being freed."""
    places = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    return any(output.untyped_storage().data_ptr() in places for output in outputs)


def _count_writes(inputs: Sequence[torch.Tensor], written: Iterable[int]) -> None:
    """Count a write to each of the tensors, as PyTorch does. Those of inference mode have no counter."""
    counted = [tensor for position in written if not (tensor := inputs[position]).is_inference()]
    if counted:
        torch.autograd.graph.increment_version(counted)


def _do_nothing() -> None:
    """Replay nothing."""


class NewOutputs:
    """Allocates new tensors in the layouts of the outputs of a graph, for every call.

    Inductor's generated code allocates by the same private function, in a third of the time of `torch.empty_like`. It
    supports tensors without gaps, on the current device.

    Attributes:
        makers: a function for each tensor.
        device: the number of the GPU that must be the current one for these functions, or None for any.
    """

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        self._usual: list[Maker] = [functools.partial(torch.empty_like, output) for output in outputs]
        self.makers = self._usual
        self.device: int | None = None
        allocate = _allocator() if any(map(_is_simple, outputs)) else None
        if allocate is None:
            return
        self.makers = [
            functools.partial(allocate, tuple(output.shape), output.stride(), output.dtype)
            if _is_simple(output)
            else usual
            for output, usual in zip(outputs, self._usual, strict=True)
        ]
        self._get_current, self.device = dispatch.CURRENT_DEVICE.get(), outputs[0].get_device()

    def __call__(self) -> list[torch.Tensor]:
        """Return new tensors."""
        is_here = self.device is None or self._get_current() == self.device
        return [make() for make in (self.makers if is_here else self._usual)]


def packer(outputs: Any) -> Callable[[list[torch.Tensor]], Any]:
    """Return a function that puts tensors, in the order of `pytree.tensors`, in the containers of `outputs`."""
    kind = type(outputs)
    if kind is torch.Tensor:
        return FIRST
    if kind in (tuple, list) and all(type(output) is torch.Tensor for output in outputs):
        return kind
    return lambda tensors: _with(outputs, iter(tensors))


def _with(outputs: Any, following: Iterator[torch.Tensor]) -> Any:
    kind = type(outputs)
    if kind is torch.Tensor:
        return next(following)
    if kind in PLAIN:
        return outputs
    if kind is tuple or kind is list:
        return kind([_with(output, following) for output in outputs])
    return pytree.map_tensors(lambda _: next(following), outputs)


def _is_simple(output: torch.Tensor) -> bool:
    return output.is_cuda and _is_ordinary(output) and _has_no_gaps(output)


@functools.cache
def _allocator() -> Callable[..., torch.Tensor] | None:
    try:
        found: Callable[..., torch.Tensor] = dispatch.EMPTY_STRIDED.get("allocating quickly")
    except UnsupportedError:
        return None
    return found


def _has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether every element lies once in one block of memory, in any order of dimensions."""
    expected = 1
    for stride, length in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride != expected:
            return False
        expected *= length
    return tensor.numel() > 0


def _is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether a tensor is plain memory, which its address fully describes."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and not (tensor.is_nested or tensor.is_conj() or tensor.is_neg())
