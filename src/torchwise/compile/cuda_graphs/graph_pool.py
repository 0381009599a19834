"""The memory, the stream and the order of replays that all CUDA graphs of one owner share.

An owner is a captured call, step or loop. Its graphs write to one memory pool, so that they must not run side by side.

Also here: the key of a recorded graph: the conditions under which it may answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

import torch

from torchwise._torch import cuda_graphs
from torchwise._torch.dispatch import is_transforming
from torchwise.compile.cuda_graphs.capture_stream import RecordingStream
from torchwise.compile.cuda_graphs.recorded_graph import Graph, record, record_in_place
from torchwise.compile.signature import Signature, signature_of
from torchwise.errors import UnsupportedError


class GraphPool:
    """Records the graphs of one owner, and orders their replays.

    Attributes:
        handle: the memory pool of the graphs recorded next.
        stream: the stream on which they are recorded.
    """

    def __init__(self) -> None:
        self.handle: Any = None
        self.stream = RecordingStream()
        self._last: torch.cuda.Stream | None = None
        self._last_raw: tuple[int, int] | None = None
        try:
            self._get_raw_stream: Callable[[int], int] = cuda_graphs.RAW_STREAM.get()
        except UnsupportedError:  # as with a build for the CPU
            self._get_raw_stream = lambda device: torch.cuda.current_stream(device).cuda_stream

    def follow_current_stream(self) -> None:
        """Let the first replay wait for work that is queued on the current stream, such as casts of weights."""
        self._last, self._last_raw = torch.cuda.current_stream(), None

    def renew(self, graphs: Sized = ()) -> None:
        """Take new memory unless there are graphs, as a pool without them takes no new ones while tensors lie in it."""
        if not graphs:
            self.handle = torch.cuda.graph_pool_handle()

    def record(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], settled: Callable[[], None]
    ) -> Graph:
        """Warm up, and record one call on copies of its inputs. See `recorded_graph.record`."""
        return record(call, args, kwargs, pool=self.handle, stream=self.stream, settled=settled)

    def record_in_place(
        self,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        wanted: list[torch.Tensor] | None,
    ) -> tuple[Callable[[], None], Any]:
        """Record one warm call on the memory of its arguments. See `recorded_graph.record_in_place`."""
        return record_in_place(call, args, kwargs, wanted, pool=self.handle, stream=self.stream)

    def wait_for_last_replay(self, device: int) -> None:
        """Wait for the last replay if it was on another stream, as it may still use the memory of the graphs.

        Args:
            device: index of the current GPU.
        """
        raw = device, self._get_raw_stream(device)  # the default stream of every GPU has the same address
        if raw == self._last_raw:
            return
        current = torch.cuda.current_stream()
        if self._last is not None:
            current.wait_stream(self._last)
        self._last, self._last_raw = current, raw


DEVICE = "cuda"
"""The device of graphs."""

GraphKey = tuple[Signature, torch.dtype | None, bool]
"""The signature of the inputs, the dtype of autocast if it is enabled, and whether gradients are enabled."""


def graph_key_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GraphKey:
    """Return the key that selects among graphs."""
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return signature_of(args, dict(kwargs)), autocast, torch.is_grad_enabled()


def is_unavailable() -> bool:
    """Whether no graph may answer now: a graph is being recorded, or a function transform (vmap, jvp) is active."""
    if is_transforming():
        return True
    return torch.cuda.is_current_stream_capturing()


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a graph can reach a tensor."""
    return tensor.device.type == DEVICE
