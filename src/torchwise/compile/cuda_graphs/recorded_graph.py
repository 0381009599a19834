"""A recorded call: a CUDA graph, the key under which it may answer, and how its tensors are copied in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch.dispatch import copy_each, is_transforming
from torchwise.compile.signature import Signature, is_strided, opaque_leaves, signature_of
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.pytree import PLAIN

DEVICE = "cuda"
"""The device of graphs."""

GraphKey = tuple[Signature, torch.dtype | None, bool]
"""The signature of the inputs, the dtype of autocast if it is enabled, and whether gradients are enabled."""


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
        copy_each(
            [tensors[position] for position in self.written], [self.inputs[position] for position in self.written]
        )


def graph_key_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GraphKey:
    """Return the key that selects among graphs."""
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return signature_of(args, dict(kwargs)), autocast, torch.is_grad_enabled()


def is_unavailable() -> bool:
    """Whether no graph may answer now: a graph is being recorded, or a function transform (vmap, jvp) is active."""
    return is_transforming() or torch.cuda.is_current_stream_capturing()


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a graph can reach a tensor."""
    return tensor.device.type == DEVICE


def tensors_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """List the tensors in the order of `pytree.tensors`, with a fast path if they are not nested."""
    places = flat_places(args, kwargs)
    return pytree.tensors((args, kwargs)) if places is None else [args[place] for place in places]


def flat_places(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int] | None:
    """Return the positions of the tensors in `args`, or None if a tensor is nested or a keyword argument."""
    if kwargs or not all(type(arg) is torch.Tensor or type(arg) in PLAIN for arg in args):
        return None
    return [place for place, arg in enumerate(args) if type(arg) is torch.Tensor]


def overlap(tensors: list[torch.Tensor]) -> bool:
    """Whether two of the tensors share a storage, so that a write to one may change memory that another one reads."""
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors)


def static(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that a graph reads or writes on every replay."""
    return tensor.detach().clone()


def static_inputs(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
    """Return copies of the arguments for graphs to read from, and the tensors in them in the order of `tensors_of`."""
    copies: tuple[tuple[Any, ...], dict[str, Any]] = pytree.map_tensors(static, (args, dict(kwargs)))
    inputs = pytree.tensors(copies)
    if opaque := opaque_leaves(copies):
        raise UnsupportedError(f"an input holds {opaque[0]}, whose contents could change unnoticed")
    if not all(map(is_strided, inputs)):  # copying into a sparse tensor allocates other memory
        raise UnsupportedError("an input is sparse or nested, but a graph needs strided memory")
    if outside := _elsewhere(inputs):
        raise UnsupportedError(f"an input is on {outside[0].device}, but a graph needs it on the current GPU")
    return *copies, inputs


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


def check_outputs(outputs: Any) -> None:
    """Refuse outputs that a replay would not refresh, or that cannot be copied."""
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
