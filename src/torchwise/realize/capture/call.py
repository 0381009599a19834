"""A whole call as one CUDA graph: inputs are copied in, one launch replays every kernel, outputs are copied out.

Sources: PyTorch's `torch.cuda.graph` documentation (warm-up on a side stream, private pools, registered generators);
vLLM's and PyTorch's own CUDA-graph wrappers for the one-pool-for-all-shapes idiom.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from torchwise.errors import UnsupportedError
from torchwise.realize.capture.watch import ModuleWatch
from torchwise.realize.signature import Signature, opaque_leaves, signature_of
from torchwise.realize.weights import version_of
from torchwise.workload import trees
from torchwise.workload.state import kept_buffers

if TYPE_CHECKING:
    import torch

WARM_UP_CALLS = 3
"""Calls before capture: lazy initialisation, cuDNN's choice and Inductor's compilation must lie behind it."""


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    outputs: Any
    written: list[int]  # positions of the inputs that the call writes to


class CapturedCall:
    """Replays `call` from one CUDA graph per signature.

    Outputs are copies, so they may be held. Inputs that the call writes to are copied back. Random numbers are fresh on
    each replay, because PyTorch registers the default generator with every graph. Weights changed in place are seen,
    as the graph reads the same memory; weights that moved, came or went, submodules that were replaced, and a switch
    between training and evaluation anywhere in the module lead to a new capture. Calls from several threads take
    turns, and from several streams wait for each other, as the graph's memory is one.

    Not noticed, so that the replay goes on as before: plain Python attributes (`module.scale = 2.0`, tensors kept as
    such), hooks, a replaced `forward`, global variables, and whatever a function closes over, tensors that are
    rebound there included.

    Raises (on call):
        UnsupportedError: gradients are enabled, a tensor lies elsewhere than on the GPU, an output is in an object
            that cannot be copied, or the call itself replaces parts of its module.
    """

    def __init__(self, call: Callable[..., Any], module: torch.nn.Module | None, *, device: str, mode: str) -> None:
        import torch

        if device != "cuda":
            raise UnsupportedError(f"capture is 'call', but device is {device!r}: only CUDA has graphs")
        if mode != "inference":
            raise UnsupportedError(f"capture is 'call', but mode is {mode!r}: one call has no backward pass in it")
        self._call = call
        self._module = module
        self._graphs: dict[tuple[Signature, bool, bool], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._lock = threading.Lock()
        self._stream = torch.cuda.Stream()
        self._last_stream = torch.cuda.current_stream()
        self._watch = ModuleWatch(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as `call` does, by replay."""
        import torch

        if torch.is_grad_enabled() and any(t.requires_grad for t in trees.tensors((args, kwargs))):
            raise UnsupportedError("an input requires gradients, but a captured call computes none")
        with self._lock:
            self._follow_streams()
            self._forget_if_changed()
            key = (signature_of(args, kwargs), torch.is_autocast_enabled("cuda"), torch.is_inference_mode_enabled())
            captured = self._graphs.get(key)
            if captured is None:
                captured = self._graphs[key] = self._capture(args, kwargs)
            return self._replay(captured, args, kwargs)

    def close(self) -> None:
        """Free the graphs and their memory."""
        with self._lock:
            self._graphs.clear()

    def _replay(self, captured: _Graph, args: Any, kwargs: Any) -> Any:
        import torch

        given = _tensors(args, kwargs)
        with torch.no_grad():
            if given:
                torch._foreach_copy_(captured.inputs, given)  # one launch for all of them
            captured.graph.replay()
            for position in captured.written:
                given[position].copy_(captured.inputs[position])
            if isinstance(captured.outputs, torch.Tensor):
                return captured.outputs.clone()
            return trees.map_tensors(torch.Tensor.clone, captured.outputs)

    def _capture(self, args: Any, kwargs: Any) -> _Graph:
        import torch

        # Outside inference mode, whose tensors keep no version by which writes to inputs are noticed.
        with torch.inference_mode(False), torch.no_grad():
            return self._captured(args, kwargs)

    def _captured(self, args: Any, kwargs: Any) -> _Graph:
        args, kwargs = trees.map_tensors(_static, (args, kwargs))
        inputs = trees.tensors((args, kwargs))
        if outside := [t for t in inputs if t.device.type != "cuda"]:
            raise UnsupportedError(f"an input lies on {outside[0].device}, but a graph replays only what is on the GPU")
        saved = [t.clone() for t in inputs]
        with kept_buffers(self._module):  # so that capturing is not counted as calls (batch-norm statistics)
            graph, outputs, written = self._recorded(args, kwargs, inputs, saved)
        if self._watch.changed():
            self._forget_if_changed()
            raise UnsupportedError(
                "the call replaces tensors, submodules or the training mode of its own module, which a replay does not"
            )
        if stray := [t for t in trees.tensors(outputs) if t.device.type != "cuda"]:
            raise UnsupportedError(f"an output lies on {stray[0].device}, which a replay would not refresh")
        if opaque := opaque_leaves(outputs):
            raise UnsupportedError(
                f"an output holds {opaque[0]}: what is in it cannot be copied, so that the next replay would overwrite "
                "it; return tensors in tuples, lists, dicts or dataclasses"
            )
        return _Graph(graph, inputs, outputs, written)

    def _recorded(
        self, args: Any, kwargs: Any, inputs: list[torch.Tensor], saved: list[torch.Tensor]
    ) -> tuple[torch.cuda.CUDAGraph, Any, list[int]]:
        """Warm up, and record one call: its graph, its outputs and the positions of the inputs that it writes to."""
        import torch

        generator = torch.cuda.get_rng_state()
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP_CALLS):
                self._call(*args, **kwargs)
                _write_back(inputs, saved)
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.set_rng_state(generator)
        self._forget_if_changed()  # lazy modules and caches took shape
        before = [version_of(t) for t in inputs]
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                outputs = self._call(*args, **kwargs)
        except BaseException:  # raised again: only the generator must be settled first, whatever it was
            _settle_generator()
            raise
        written = [i for i, (t, v) in enumerate(zip(inputs, before, strict=True)) if version_of(t) != v]
        return graph, outputs, written

    def _forget_if_changed(self) -> None:
        if self._watch.changed():
            self._graphs.clear()
            self._watch.look()

    def _follow_streams(self) -> None:
        """Wait for the stream of the last call, where it was another: it may still be using the graph's memory."""
        import torch

        current = torch.cuda.current_stream()
        if current != self._last_stream:
            current.wait_stream(self._last_stream)
            self._last_stream = current


def _settle_generator() -> None:
    """End the generator's capture, which a capture that failed leaves open: every later draw would raise."""
    import torch

    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def _tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """List the tensors in the order of `trees.tensors`, quickly where they are not nested."""
    if not kwargs and not any(isinstance(arg, (tuple, list, dict)) or is_dataclass(arg) for arg in args):
        import torch

        return [arg for arg in args if isinstance(arg, torch.Tensor)]
    return trees.tensors((args, kwargs))


def _static(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _write_back(inputs: list[torch.Tensor], saved: list[torch.Tensor]) -> None:
    for tensor, original in zip(inputs, saved, strict=True):
        tensor.copy_(original)
