"""One recorded call: a CUDA graph, and the tensors for its inputs and its outputs.

Sources: PyTorch's `torch.cuda.graph` documentation (warm-up on a side stream, private pools, registered generators).
vLLM's and PyTorch's own CUDA-graph wrappers for the one-pool-for-all-shapes idiom.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch.dispatch import copy_each
from torchwise.compile.cuda_graphs.capture_stream import RecordingStream, recovery_stream, warm_up_stream
from torchwise.compile.cuda_graphs.compile_freeze import count_capture
from torchwise.compile.signature import is_strided, opaque_leaves
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.pytree import PLAIN

WARM_UP_CALLS = 3
"""Calls before capture, for lazy initialization, cuDNN's algorithm choice and Inductor's compilation."""

recording_alone = threading.RLock()
"""Held while recording: two recordings would share the default generator's state and the garbage collector's switch."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A call that can be replayed.

    Attributes:
        replay: launches the recorded kernels on the current stream.
        inputs: the tensors that the kernels read, in the order of `tensors_of`.
        outputs: the call's outputs. Each replay overwrites their tensors.
        written: positions of the inputs that the call writes to.
    """

    replay: Callable[[], None]
    inputs: list[torch.Tensor]
    outputs: Any
    written: list[int]

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, borrow: bool = False) -> Any:
        """Copy the inputs in, replay, and return copies of the outputs, or with `borrow` the graph's own outputs."""
        self.run(tensors_of(args, kwargs))
        return self.outputs if borrow else copy_outputs(self.outputs)

    def run(self, tensors: list[torch.Tensor]) -> None:
        """Copy the inputs in, replay, and copy the written inputs back."""
        copy_each(self.inputs, tensors)
        self.replay()
        for position in self.written:
            tensors[position].copy_(self.inputs[position])


def record(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    pool: Any,
    stream: RecordingStream,
    settled: Callable[[], None],
) -> Graph:
    """Warm up, and record one call on copies of its inputs.

    Args:
        call: the callable to record.
        args: positional arguments.
        kwargs: keyword arguments.
        pool: the memory pool that the graphs of one plan share.
        stream: the plan's own stream.
        settled: called between warm-up and recording.

    Raises:
        UnsupportedError: a tensor is not on the current GPU, an input is sparse or nested, or an output is in an object
            that cannot be copied.
    """
    args, kwargs, inputs = static_inputs(args, kwargs)
    warm_up(call, args, kwargs, inputs)
    settled()
    before = [t._version for t in inputs]
    replay, outputs = _record_graph(lambda: call(*args, **kwargs), pool=pool, stream=stream)
    check_outputs(outputs)
    written = [i for i, (t, v) in enumerate(zip(inputs, before, strict=True)) if t._version != v]
    return Graph(replay, inputs, outputs, written)


def static_inputs(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
    """Return copies of the arguments for graphs to read from, and the tensors in them in the order of `tensors_of`.

    Raises:
        UnsupportedError: a tensor is not on the current GPU, is sparse or nested, or is in an object.
    """
    copies: tuple[tuple[Any, ...], dict[str, Any]] = pytree.map_tensors(static, (args, dict(kwargs)))
    inputs = pytree.tensors(copies)
    if opaque := opaque_leaves(copies):
        raise UnsupportedError(f"an input holds {opaque[0]}, whose contents could change unnoticed")
    if not all(map(is_strided, inputs)):  # copying into a sparse tensor allocates other memory
        raise UnsupportedError("an input is sparse or nested, but a graph needs strided memory")
    if outside := _elsewhere(inputs):
        raise UnsupportedError(f"an input is on {outside[0].device}, but a graph needs it on the current GPU")
    return *copies, inputs


def record_in_place(
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    wanted: list[torch.Tensor] | None,
    *,
    pool: Any,
    stream: RecordingStream,
) -> tuple[Callable[[], None], Any]:
    """Record one warm call on the memory of its arguments, with its outputs copied to `wanted`.

    Recording computes nothing, so it writes nothing either.

    Args:
        call: the callable to record.
        args: positional arguments. The graph reads and writes the memory of these tensors.
        kwargs: keyword arguments.
        wanted: a tensor for each tensor in the outputs, in the order of `pytree.tensors`, or None to leave them in
            place.
        pool: the memory pool that the graphs of one plan share.
        stream: the plan's own stream.

    Returns:
        The replay, and the graph's own outputs if they are left in place. The graph overwrites them.
    """
    args, kwargs = pytree.map_tensors(_alias, (args, dict(kwargs)))
    targets = None if wanted is None else [_alias(target) for target in wanted]

    def call_into_targets() -> Any:
        outputs = call(*args, **kwargs)
        if targets is None:
            return outputs
        copy_each(targets, pytree.tensors(outputs))
        return None

    return _record_graph(call_into_targets, pool=pool, stream=stream)


def _record_graph(call: Callable[[], Any], *, pool: Any, stream: RecordingStream) -> tuple[Callable[[], None], Any]:
    """Return the replay of `call`, and its outputs during the recording.

    Other threads may use the GPU meanwhile, such as a thread that pins memory for a data loader.
    """
    graph, pool = torch.cuda.CUDAGraph(), stream.usable(pool)
    with recording_alone:
        try:
            with (
                recording_on(stream) as ready,
                torch.cuda.graph(graph, pool=pool, stream=ready, capture_error_mode="thread_local"),
            ):
                outputs = call()
            count_capture()
        except BaseException:  # raised again after any error: allocator and generator must be restored first
            stream.give_up(graph, pool)
            settle_generator()
            raise
    return graph.replay, outputs


@contextlib.contextmanager
def recording_on(stream: RecordingStream) -> Iterator[torch.cuda.Stream]:
    """Yield the stream to record on, and prevent anything that may disturb a recording."""
    with (
        recording_alone,
        torch.cuda.stream(
            torch.cuda.current_stream()
        ),  # set again at the end: a capture that fails to end leaves its own stream
        _own_casts(),
        _no_collection(),
        stream.ready() as ready,
    ):
        yield ready


def collect_garbage() -> None:
    """Free objects in reference cycles, such as CUDA graphs, while nothing is recorded, as freeing a graph then fails.

    It collects twice: compiled code is in cycles, and its frozen weights are in further cycles.
    """
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return
    with recording_alone:
        for _ in range(2):
            gc.collect()


def tensors_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """List the tensors in the order of `pytree.tensors`, with a fast path if they are not nested."""
    places = flat_places(args, kwargs)
    return pytree.tensors((args, kwargs)) if places is None else [args[place] for place in places]


def flat_places(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
    """Return the positions of the tensors in `args`, or None if a tensor is nested or a keyword argument."""
    if kwargs or not all(type(arg) is torch.Tensor or type(arg) in PLAIN for arg in args):
        return None
    return [place for place, arg in enumerate(args) if type(arg) is torch.Tensor]


def copy_outputs(outputs: Any) -> Any:
    """Copy every tensor. The usual containers have a fast path, because this runs on every call."""
    kind = type(outputs)
    if kind is torch.Tensor:
        return outputs.clone()
    if kind is tuple or kind is list:
        return kind(map(copy_outputs, outputs))
    if kind is dict:
        return {name: copy_outputs(value) for name, value in outputs.items()}
    return pytree.map_tensors(torch.Tensor.clone, outputs)


def warm_up(call: Callable[..., Any], args: Any, kwargs: Any, inputs: list[torch.Tensor]) -> None:
    """Call a few times on a side stream, and restore inputs and random numbers.

    The current stream waits even if the call raises, as code that restores the state must not race with its kernels.
    """
    stream = warm_up_stream(torch.cuda.current_device())
    saved = [t.clone() for t in inputs]
    generator = torch.cuda.get_rng_state()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                call(*args, **kwargs)
                for tensor, original in zip(inputs, saved, strict=True):
                    tensor.copy_(original)
    finally:
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.set_rng_state(generator)


def overlap(tensors: list[torch.Tensor]) -> bool:
    """Whether two of the tensors share a storage, so that a write to one may change memory that another one reads."""
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors)


@contextlib.contextmanager
def _own_casts() -> Iterator[None]:
    """Have autocast cast weights inside the graph, as earlier casts are freed when its context ends."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector, as freeing a CUDA graph during a recording would fail."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def check_outputs(outputs: Any) -> None:
    """Refuse outputs that a replay would not refresh, or that cannot be copied.

    Raises:
        UnsupportedError: there is such an output.
    """
    if stray := _elsewhere(pytree.tensors(outputs)):
        raise UnsupportedError(f"an output is on {stray[0].device}, which a replay would not update")
    if opaque := opaque_leaves(outputs):
        raise UnsupportedError(
            f"an output holds {opaque[0]}, whose contents cannot be copied, so the next replay would overwrite them: "
            "return tensors in tuples, lists, dicts or dataclasses"
        )


def _elsewhere(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """List the tensors that are not on the current GPU. Kernels of another GPU would not be recorded."""
    return [t for t in tensors if t.device.type != "cuda" or t.device.index != torch.cuda.current_device()]


def settle_generator() -> None:
    """End the generator's capture, which a failed capture leaves open, as every later draw would raise.

    It uses a stream that no other code uses. Later versions clear a stream's workspaces with any graph of it, and the
    default stream of `torch.cuda.graph` may have recorded graphs of the user.
    """
    with (
        contextlib.suppress(RuntimeError, UnsupportedError),
        torch.cuda.stream(torch.cuda.current_stream()),
        _no_collection(),
        torch.cuda.graph(
            torch.cuda.CUDAGraph(),
            stream=recovery_stream(torch.cuda.current_device()),
            capture_error_mode="thread_local",
        ),
    ):
        torch.zeros(1, device="cuda")


def static(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that a graph reads or writes on every replay."""
    return tensor.detach().clone()


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor on the same memory, as in the warm-up: neither a parameter nor of inference mode."""
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return alias.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
