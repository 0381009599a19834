"""The work of a profiler's event: its bytes and FLOPs, from the observed original model and from its shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchwise.diagnose.flops import MOVES, VIEWS, product_flops
from torchwise.diagnose.op_trace import Shapes, Work

_GENERATED = re.compile(r"^(?:graph_\d+_)?((?:cpp|triton)_\w+)$")
_ITEM_BYTES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}


@dataclass(frozen=True, slots=True)
class KnownWork:
    """The work that is known before profiling.

    Attributes:
        nbytes: bytes of generated kernels, by name.
        operators: work of the original model's operators, by name and shapes.
    """

    nbytes: Mapping[str, float]
    operators: Mapping[tuple[str, Shapes], Work]

    def work_of(self, event: Any) -> Work:
        """Return the work of a generated kernel or an operator, or the work of the operators within it."""
        if generated := kernel_name(event.name):
            return Work(self.nbytes.get(generated), None)
        if event.name in VIEWS:
            return Work(0.0, 0.0)
        work = self._operator_work(event) or _product(event) or _inplace_work(event)
        if work and work.flops is not None:
            return work
        within = _sum(
            [self.work_of(child) for child in event.cpu_children if is_operator(child.name)], event.name in MOVES
        )
        return Work(work.nbytes, within.flops) if work else within

    def _operator_work(self, event: Any) -> Work | None:
        """Return the work of the original model's operator of this name and shapes.

        An operator with an `out` argument has one tensor more. A compiled convolution has no tensor for its bias.
        """
        shapes = _shapes(event)
        for count in range(len(shapes), 0, -1):
            if work := self.operators.get((event.name, shapes[:count])):
                return work
        if "conv" not in event.name or len(shapes) < 2:
            return None
        same = (work for (name, its), work in self.operators.items() if name == event.name and its[:2] == shapes[:2])
        return next(same, None)


def is_operator(name: str) -> bool:
    """Return whether an event is an operator or a generated kernel."""
    return bool(_GENERATED.match(name)) or ("::" in name and " " not in name)


def kernel_name(name: str) -> str | None:
    """Return the name of a generated kernel without the graph's number, or None for another event."""
    hit = _GENERATED.match(name)
    return hit[1] if hit else None


def _sum(parts: list[Work], only_moves: bool) -> Work:
    """Add up the work of the operators within an operator.

    Unknown ones may compute anything but products. Compared with products their operations are few, and PyTorch's
    counter leaves them out as well.
    """
    nbytes, flops = [part.nbytes for part in parts], sum(part.flops or 0.0 for part in parts)
    total = sum(each or 0.0 for each in nbytes)
    is_known = bool(parts) and None not in nbytes and (total > 0 or only_moves)
    return Work(total if is_known else None, flops or (0.0 if only_moves else None))


def _shapes(event: Any) -> Shapes:
    """Return the shapes of an event's tensors, and of those in its lists, as `op_trace.shapes_of` does."""
    shapes: list[tuple[int, ...]] = []
    for shape in getattr(event, "structured_input_shapes", None) or event.input_shapes or ():
        within = shape if shape and isinstance(shape[0], (list, tuple)) else (shape,)
        shapes += [tuple(each) for each in within if each]
    return tuple(shapes)


def _input_bytes(event: Any, count: int) -> float | None:
    """Return the bytes of the first tensors of an event, by their shapes and dtypes, or None if unknown."""
    dtypes = getattr(event, "input_dtypes", None) or ()
    input_bytes = [
        (shape, _ITEM_BYTES.get(dtype)) for shape, dtype in zip(event.input_shapes, dtypes, strict=False) if shape
    ]
    if len(input_bytes) < count or any(item is None for _, item in input_bytes[:count]):
        return None
    return float(sum((item or 0) * math.prod(shape) for shape, item in input_bytes[:count]))


def _inplace_work(event: Any) -> Work | None:
    """Return the bytes of an operator that writes to its first tensor, or None for another one."""
    if not event.name.endswith("_") or not _shapes(event):
        return None
    input_bytes, written = _input_bytes(event, len(_shapes(event))), _input_bytes(event, 1)
    if input_bytes is None or written is None:
        return None
    return Work(input_bytes + written, 0.0 if event.name in MOVES else None)


def _product(event: Any) -> Work | None:
    """Return the work of a matrix product from its shapes and its dtype."""
    shapes, dtype = _shapes(event), next(iter(getattr(event, "input_dtypes", None) or ()), "")
    flops = product_flops(event.name, shapes, "complex" in dtype)
    if flops is None:
        return None
    operands = 3 if "add" in event.name else 2
    left, right = shapes[operands - 2 : operands]
    result = math.prod(left[:-1]) * (right[-1] if len(right) > 1 else 1)
    input_bytes, item = _input_bytes(event, operands), _ITEM_BYTES.get(dtype)
    return Work(None if input_bytes is None or item is None else input_bytes + item * result, flops)
