"""How tensors lie in memory: those of other layouts than strided, and those of a call that share memory.

Tensors of other layouts (sparse, nested, quantized) are seen by the strided tensors that they consist of. Of tensors
that share memory, a write to one may be read through another.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import add, le

import torch


def is_strided(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary tensor: numbers in memory, found by strides."""
    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return plain and not _is_packed(tensor)


def _is_packed(tensor: torch.Tensor) -> bool:
    """Whether an element holds several numbers, for which PyTorch has next to no operators."""
    return str(tensor.dtype).endswith("_x2")


def layout_of(tensor: torch.Tensor) -> str:
    """Name a tensor's layout, with the facts that its strided parts do not show."""
    name = str(tensor.layout).removeprefix("torch.").removeprefix("_")
    if tensor.is_nested:
        return "nested"
    name = str(tensor.qscheme()) if tensor.is_quantized else str(tensor.dtype) if _is_packed(tensor) else name
    return f"{name}{list(tensor.shape)}"


def list_strided_parts(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """List the strided tensors that make up a tensor, by name. An ordinary tensor is its own only part, named "".

    If it requires a gradient, so do the parts that hold its numbers. They share its memory if that is possible.
    """
    if is_strided(tensor):
        return [("", tensor)]
    if _is_packed(tensor):
        return [(".view(torch.uint8)", tensor.view(torch.uint8))]
    if tensor.is_nested:
        return [(f"[{position}]", row) for position, row in enumerate(tensor.unbind())]
    if tensor.is_quantized:
        return [(".int_repr()", tensor.int_repr()), (".dequantize()", tensor.dequantize())]
    names = {
        torch.sparse_coo: ("indices", "values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
        torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    }.get(tensor.layout)
    if names is None:  # such as MKL-DNN's own
        return [(".to_dense()", tensor.to_dense())]
    given = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
    return [(f".{name}()", getattr(given, name)()) for name in names]


def size_of(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor takes, its indices included."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    return sum(part.nbytes for _, part in list_strided_parts(tensor))


MAX_PLACES = 1000
"""Maximum number of differences followed at once to decide whether two tensors overlap. Beyond it, they count as such.
"""


class Overlap(tuple[tuple[int, int], ...]):
    """The positions of a call's tensors relative to each other in memory.

    It has an entry for each tensor, in order: the position of the first tensor that it overlaps with, and the distance
    in bytes at which it begins behind that one.
    """

    __slots__ = ()


def overlap_of(tensors: Sequence[torch.Tensor]) -> Overlap | None:
    """Return how tensors overlap, or None if they are apart, as views of other columns of a matrix are.

    A tensor without ordinary memory (on the meta device, sparse, nested, wrapped by `torch.func`) overlaps with none.
    """
    if len(tensors) < 2:
        return None
    try:
        if _lie_in_other_storages(tensors):
            return None
        firsts: dict[int, int] = {}
        same = [firsts.setdefault(id(tensor), at) for at, tensor in enumerate(tensors)]
        if len(firsts) < len(tensors) and _lie_in_other_storages([tensors[at] for at in firsts.values()]):
            return Overlap((first, 0) for first in same)
    except (RuntimeError, NotImplementedError):  # one has none: it stands for another tensor, or is sparse
        pass
    return _find_overlap(tensors)


def _lie_in_other_storages(tensors: Sequence[torch.Tensor]) -> bool:
    storages = [tensor.untyped_storage() for tensor in tensors]
    return are_disjoint([storage.data_ptr() for storage in storages], [storage.nbytes() for storage in storages])


def are_disjoint(starts: Sequence[int], lengths: Sequence[int]) -> bool:
    """Whether ranges of addresses share none: sorted, each one then begins at or after the end of the one before."""
    return all(map(le, sorted(map(add, starts, lengths)), sorted(starts)[1:]))


def reach_of(tensor: torch.Tensor) -> int:
    """Return how many bytes there are from the first to the last of a strided tensor's."""
    return _reach((tuple(tensor.shape), tensor.stride(), tensor.element_size()))


Shape = tuple[tuple[int, ...], tuple[int, ...], int]
Box = tuple[int, Shape]


def _box(tensor: torch.Tensor) -> Box | None:
    """Return the start of a tensor's memory with its shape, strides and bytes per element, or None without memory."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # it stands for another tensor, or for none
        return None
    return (start, (tuple(tensor.shape), tensor.stride(), tensor.element_size())) if start else None


@functools.lru_cache(maxsize=4096)
def _reach(shape: Shape) -> int:
    sizes, strides, element = shape
    if 0 in sizes:
        return 0
    return (sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1) * element


def _find_overlap(tensors: Sequence[torch.Tensor]) -> Overlap | None:
    boxes = [_box(tensor) for tensor in tensors]
    groups = list(range(len(tensors)))
    placed = sorted((box, position) for position, box in enumerate(boxes) if box is not None and _reach(box[1]))
    open_: list[tuple[Box, int]] = []
    for box, position in placed:
        open_ = [(other, at) for other, at in open_ if other[0] + _reach(other[1]) > box[0]]
        for other, at in open_:
            if groups[at] != groups[position] and _meet(other[1], box[1], box[0] - other[0]):
                first, second = sorted((groups[at], groups[position]))
                groups = [first if group == second else group for group in groups]
        open_.append((box, position))
    starts = [box[0] if box is not None else 0 for box in boxes]
    found = Overlap((group, starts[at] - starts[group]) for at, group in enumerate(groups))
    return found if groups != list(range(len(tensors))) else None


@functools.lru_cache(maxsize=4096)
def _meet(one: Shape, other: Shape, distance: int) -> bool:
    """Whether two tensors have a byte in common, of which the second begins `distance` behind the first.

    That is: whether steps of the one less steps of the other make up the distance. They are taken from the longest on,
    and only as far as the shorter ones can make up for the rest.
    """
    steps: dict[int, tuple[int, int]] = {}
    for sign, (sizes, strides, element) in ((1, one), (-1, other)):
        for size, step in (*zip(sizes, (stride * element for stride in strides), strict=True), (element, 1)):
            low, high = steps.get(step, (0, 0))
            steps[step] = (low, high + size - 1) if sign > 0 else (low - size + 1, high)
    steps.pop(0, None)  # of expanded dimensions
    left, places = sorted(steps.items(), reverse=True), {distance}
    for number, (step, (low, high)) in enumerate(left):
        least = sum(step * low for step, (low, _) in left[number + 1 :])
        most = sum(step * high for step, (_, high) in left[number + 1 :])
        places = {
            place - step * count
            for place in places
            for count in range(max(low, -((most - place) // step)), min(high, (place - least) // step) + 1)
        }
        if len(places) > MAX_PLACES:
            return True
    return 0 in places


def count_writes(tensor: torch.Tensor) -> int | None:
    """Return PyTorch's count of the writes to a tensor, or None in inference mode, which keeps none."""
    return None if tensor.is_inference() else tensor._version
