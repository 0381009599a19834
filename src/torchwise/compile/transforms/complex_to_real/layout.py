"""The layout of numbers in memory: an output keeps the strides that eager gives it, gaps and repetitions included.

Also here: the parts of a large reduction's result are written one by one, and a kernel of its own interleaves them, on
a GPU.

Inductor chooses how a reduction loops by the places of its results. Results that go to every second place look
scattered to it, and it takes blocks of few rows. The field of 100 sources at 1 048 576 points then takes 617
microseconds. With its parts apart it takes 340, of which interleaving is 14. At 8192 points and 50 sources the second
kernel costs more than it gains: 12.2 against 8.1 (one H200, torch 2.11). Values computed element by element are
interleaved as they are written.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional

from torchwise.compile.transforms.complex_to_real.registry import Recorder
from torchwise.compile.transforms.complex_to_real.values import Pair

Strides = Sequence[int]


def interleave(pair: Pair, strides: Strides) -> torch.Tensor:
    """Return both parts as (..., 2), which `view_as_complex` reads as a tensor of `strides`."""
    if pair.whole is not None and lies(pair.whole, [*(2 * stride for stride in strides), 1]):
        return pair.whole
    return arrange(pair.tensors(), strides)


def arrange(parts: Sequence[torch.Tensor], strides: Strides) -> torch.Tensor:
    """Lay one tensor out with `strides`, or two as (..., 2) with twice those.

    A dimension that is repeated (stride 0) is laid out once and expanded. If strides leave gaps, the memory between is
    padding. Other strides cannot be made this way, and different ones come out. Those are strides that are no multiple
    of the next smaller one, and strides of elements that share memory otherwise.
    """
    size = parts[0].shape
    thin = [1 if stride == 0 else length for length, stride in zip(size, strides, strict=True)]
    order = sorted(range(len(size)), key=lambda dim: (thin[dim] != 1, -strides[dim]))
    room = _room([thin[dim] for dim in order], [strides[dim] for dim in order])
    laid = [_pad(_narrow(part, thin).permute(order).unsqueeze(-1), room) for part in parts]
    whole = torch.stack(laid, dim=-1) if len(laid) > 1 else laid[0].contiguous().unsqueeze(-1)
    whole = _narrow(whole, [thin[dim] for dim in order]).select(len(size), 0)
    whole = whole.permute([*(order.index(dim) for dim in range(len(size))), len(size)])
    return whole.expand(*size, 2) if len(parts) > 1 else whole.squeeze(-1).expand(size)


def lies(tensor: torch.Tensor, strides: Strides) -> bool:
    """Whether a tensor has those strides. Dimensions of length 0 and 1 do not count, as their strides mean nothing."""
    dimensions = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return tensor.numel() == 0 or all(length == 1 or a == b for length, a, b in dimensions)


def fills_its_memory(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor fills its whole memory: without an offset, gaps or repetitions."""
    filled = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1 and stride != filled:
            return False
        filled *= length
    return tensor.untyped_storage().nbytes() == filled * tensor.element_size()


def _room(lengths: list[int], strides: list[int]) -> list[int]:
    """Return the elements that each dimension, slowest first, takes in memory, and last the distance of elements."""
    room = list(lengths)
    for place in range(1, len(lengths)):
        if lengths[place - 1] > 1:
            room[place] = max(strides[place - 1] // strides[place], lengths[place])
    return [*room, strides[-1] if lengths and lengths[-1] > 1 else 1]


def _pad(tensor: torch.Tensor, room: list[int]) -> torch.Tensor:
    missing = [more - length for length, more in zip(tensor.shape, room, strict=True)]
    padding = [number for more in reversed(missing) for number in (0, more)]
    return torch.nn.functional.pad(tensor, padding) if any(missing) else tensor


def _narrow(tensor: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    for dim, length in enumerate(lengths):
        tensor = tensor.narrow(dim, 0, length) if tensor.shape[dim] != length else tensor
    return tensor


aten = torch.ops.aten

DEVICE = "cuda"
MIN_ELEMENTS = 1 << 22
"""Reduced elements below which a kernel of its own does not pay.

The limit lies between the two fields above, where costs and gains are alike.
"""
FARTHEST = 16
"""Maximum number of nodes between a reduction and its interleaving: more would be computed twice."""


def split_interleaves(graph: torch.fx.Graph, recorder: Recorder) -> None:
    """Replace each interleaving of two reduced parts by a choice between them, place by place."""
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        parts = node.args[0]
        if len(parts) == 2 and _is_interleaving(node.meta["val"], parts) and any(map(_is_reduced, parts)):
            with graph.inserting_before(node), recorder:
                re, im = (recorder.bind(part) for part in parts)
                chosen = torch.where(torch.arange(2, device=re.device) == 0, re, im)
            node.replace_all_uses_with(recorder.node_of(chosen))
            graph.erase_node(node)


def _is_interleaving(whole: torch.Tensor, parts: tuple[torch.fx.Node, torch.fx.Node]) -> bool:
    """Whether both parts are put side by side, one element each, on a GPU."""
    return whole.device.type == DEVICE and all(part.meta["val"].shape == (*whole.shape[:-1], 1) for part in parts)


def _is_reduced(part: torch.fx.Node) -> bool:
    """Whether a part is the result of a large reduction, with any element-wise operators after it."""
    size = part.meta["val"].numel()
    waiting, visited = [part], {part}
    while waiting and len(visited) <= FARTHEST:
        node = waiting.pop()
        sources = [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
        if torch.Tag.reduction in getattr(node.target, "tags", ()):
            return any(source.meta["val"].numel() >= MIN_ELEMENTS for source in sources)
        before = [source for source in sources if source.meta["val"].numel() == size and source not in visited]
        waiting += before
        visited.update(before)
    return False
