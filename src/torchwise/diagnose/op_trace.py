"""Observe one call of the original model, operator by operator: FLOPs, and the lines where the host waits for data.

An addition and a multiplication count as one operation each, as in `torch.utils.flop_counter`. For complex numbers they
count as four real ones each. Terms fused into a product, such as a bias or an activation, are left out, as in PyTorch's
counter.
"""

from __future__ import annotations

import linecache
import math
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula, sdpa_flop_count

from torchwise._torch.dispatch import EagerMode
from torchwise.compile.tensor_reads import answering
from torchwise.compile.transforms.numbers_on_gpu import WIDE
from torchwise.records.explanation import SourceLocation
from torchwise.workload.layouts import size_of

Shapes = tuple[tuple[int, ...], ...]
_HOST_READS = {
    "aten::_local_scalar_dense": ".item(), float(), int(), or an if on a tensor",
    "aten::nonzero": "nonzero(), or a boolean mask as an index",
    "aten::masked_select": "masked_select()",
    "aten::_unique2": "unique()",
    "aten::equal": "torch.equal()",
    "aten::repeat_interleave": "repeat_interleave() with a tensor of repeats",
}
READS_ONE = "aten::_local_scalar_dense"
"""The operator with which Python reads one number. The others return a count or a bool."""
_OWN = Path(__file__).parents[1]
_MACHINERY = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, _OWN))
_ZOO = f"{_OWN / 'zoo'}{os.sep}"
_VIEWS = (
    "empty empty_like empty_strided as_strided as_strided_ view view_as _unsafe_view _reshape_alias detach alias t "
    "transpose transpose_ mT permute expand expand_as slice narrow select unbind split unsafe_split chunk unsafe_chunk "
    "unsqueeze squeeze unflatten movedim real view_as_real view_as_complex lift_fresh resolve_conj resolve_neg "
    "result_type cudnn_is_acceptable _nnpack_available"
)
_MOVES = (
    "copy_ copy to _to_copy clone contiguous reshape flatten cat stack index index_select index_put_ gather embedding "
    "fill_ zero_ zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full constant_pad_nd "
    "slice_scatter select_scatter repeat roll flip masked_fill masked_fill_ where unfold im2col pixel_shuffle"
)
VIEWS = frozenset(f"aten::{name}" for name in _VIEWS.split())
"""Operators that touch no element: they take only the host's time."""
MOVES = frozenset(f"aten::{name}" for name in _MOVES.split())
"""Operators that move data and compute nothing."""
COMPLEX_FACTOR = 4
"""Real operations for each complex one: four products and four sums for one of each."""

_FEED_FORWARD = 12
"""Index of the first feed-forward weight among an encoder layer's arguments after its width."""

Shape = tuple[int, ...]


class ReadKind(StrEnum):
    """Kinds of values that Python reads from a tensor."""

    BOOL = "bool"
    COUNT = "count"
    """A whole number, or a size."""
    SCALAR = "scalar"
    """A number of float32 or float64."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Wait:
    """A line at which the host waits for data: why, how often in one call, and the kind of value that it reads."""

    what: str
    place: SourceLocation
    times: int
    reads: ReadKind = ReadKind.OTHER


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes of the tensors that an operator takes and returns, and its FLOPs, or None if unknown."""

    nbytes: float | None
    flops: float | None = None


@dataclass
class OpTrace:
    """The observations of one call: work by operator and the shapes of its tensors, and waits by cause and line."""

    work: dict[tuple[str, Shapes], Work] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)
    complex_operators: int = 0
    operators: int = 0


def observe(call: Callable[[], Any], device: str) -> OpTrace:
    """Run `call` once under observation. Only waits for data on `device` count."""
    mode = _TraceMode(device)
    with answering(mode.read_bool, mode.read), mode:
        call()
    trace = mode.trace
    trace.waits = [Wait(what, place, times, reads) for (what, reads, place), times in mode.waits.items()]
    return trace


def users_place() -> SourceLocation | None:
    """Return the innermost running line outside PyTorch and this package, except for its zoo."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_ZOO) or not code.co_filename.startswith((*_MACHINERY, "<")):
            excerpt = linecache.getline(code.co_filename, frame.f_lineno).strip()
            return SourceLocation(code.co_filename, frame.f_lineno, code.co_name, excerpt)
        frame = frame.f_back
    return None


def _kind_of_read(tensor: torch.Tensor) -> ReadKind:
    if tensor.dtype is torch.bool:
        return ReadKind.BOOL
    if tensor.dtype in WIDE:
        return ReadKind.SCALAR
    return ReadKind.OTHER if tensor.is_floating_point() or tensor.is_complex() else ReadKind.COUNT


class _TraceMode(EagerMode):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.trace = OpTrace()
        self.waits: dict[tuple[str, ReadKind, SourceLocation], int] = {}
        self._device = device
        self._reads = ReadKind.OTHER  # the kind of value that Python is about to read with the next operator

    def read_bool(self, _tensor: torch.Tensor) -> Any:
        """Note that Python reads a bool, and leave the read to PyTorch."""
        self._reads = ReadKind.BOOL
        return NotImplemented

    def read(self, tensor: torch.Tensor) -> Any:
        """Note that Python reads a number, and leave the read to PyTorch."""
        self._reads = _kind_of_read(tensor)
        return NotImplemented

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (within := self._decompose(func, args, kwargs)) is not NotImplemented:
            return within
        result = func(*args, **kwargs)
        name, trace = func._schema.name, self.trace
        trace.operators += 1
        tensors = _tensors(args)
        trace.complex_operators += any(t.is_complex() for t in tensors)
        nbytes = 0.0 if name in VIEWS else float(sum(map(size_of, (*tensors, *_tensors((result,))))))
        trace.work[name, shapes_of(tensors)] = Work(nbytes, flops_of(func, args, kwargs, result))
        reads, self._reads = self._reads, ReadKind.OTHER
        if (what := self._wait(name, tensors, result)) and (place := users_place()):
            wait = what, ReadKind.COUNT if name in _HOST_READS and name != READS_ONE else reads, place
            self.waits[wait] = self.waits.get(wait, 0) + 1
        return result

    def _decompose(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the operators within a composite operator, which inference mode would pass on as a whole."""
        if not torch.is_inference_mode_enabled() or func._overloadpacket in flop_registry:
            return NotImplemented
        with self:
            return func.decompose(*args, **kwargs)

    def _wait(self, name: str, tensors: list[torch.Tensor], result: Any) -> str | None:
        if not any(t.device.type == self._device for t in tensors):
            return None
        if name in _HOST_READS:
            return _HOST_READS[name]
        to_host = isinstance(result, torch.Tensor) and result.device.type == "cpu"
        if to_host and self._device != "cpu" and name in ("aten::_to_copy", "aten::copy_"):
            return ".cpu(), .numpy() or .tolist()"
        return None


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among values, and in the lists among them."""
    flat = (each for value in values for each in (value if isinstance(value, (tuple, list)) else (value,)))
    return [each for each in flat if isinstance(each, torch.Tensor)]


def shapes_of(tensors: list[torch.Tensor]) -> Shapes:
    """Return the shapes of tensors, without those of single numbers, which a profiler reports as empty."""
    return tuple(tuple(t.shape) for t in tensors if t.dim())


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> float | None:
    """Return the operations of one call of an operator, or None if unknown."""
    if (name := func._schema.name) in VIEWS or name in MOVES:
        return 0.0
    if (count := flop_registry.get(func._overloadpacket)) is None:
        return None
    is_complex = any(isinstance(each, torch.Tensor) and each.is_complex() for each in args)
    try:
        return float(count(*args, **kwargs, out_val=result)) * (COMPLEX_FACTOR if is_complex else 1)
    except Exception:  # PyTorch's formulas take no nested tensors, among others: then the count is unknown
        return None


def product_flops(name: str, shapes: tuple[Shape, ...], is_complex: bool) -> float | None:
    """Return the operations of a matrix product from its shapes, or None for another operator."""
    operands = shapes[: 3 if "add" in name else 2]
    try:
        return float(flop_registry[_PRODUCTS[name]](*operands)) * (COMPLEX_FACTOR if is_complex else 1)
    except (KeyError, TypeError, ValueError, AssertionError):  # no product, or shapes that fit no product
        return None


def _register(*names: str, get_raw: bool = False) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add a formula for operators that this PyTorch has without a formula."""
    packets = [getattr(torch.ops.aten, name, None) for name in names]
    missing = [packet for packet in packets if packet is not None and packet not in flop_registry]
    return register_flop_formula(missing, get_raw=get_raw)


def _multi_head_count(batch: int, queries: int, keys: int, width: int) -> int:
    """Count the four projections, the scores, and their product with the values."""
    projections = 2 * width * width * (2 * queries + 2 * keys)
    return batch * (projections + 4 * queries * keys * width)


def _rnn_count(x: Shape, weights: Any) -> int:
    """Count every weight of a matrix once at each step of each sequence."""
    used: int = sum(math.prod(shape) for shape in weights if len(shape) == 2)
    return 2 * math.prod(x[:-1]) * used


_register("_addmm_activation", get_raw=True)(flop_registry[torch.ops.aten.addmm])
_register("addbmm", get_raw=True)(flop_registry[torch.ops.aten.baddbmm])
_register("mv", "dot", "vdot")(lambda left, *_, **__: 2 * math.prod(left))
_register("addmv")(lambda _added, left, *_, **__: 2 * math.prod(left))
_register("addr")(lambda _added, left, right, *_, **__: 2 * math.prod(left) * math.prod(right))
_register("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_fused_attention_overrideable")(
    lambda query, key, value, *_, **__: int(sdpa_flop_count(query, key, value))
)
# The scores once more, and the gradients of four products: five products in place of two.
_register("_scaled_dot_product_flash_attention_for_cpu_backward")(
    lambda _grad, query, key, value, *_, **__: int(sdpa_flop_count(query, key, value)) * 5 // 2
)
_register("_native_multi_head_attention")(
    lambda query, key, _value, width, *_, **__: _multi_head_count(query[0], query[1], key[1], width)
)
_register("mkldnn_rnn_layer")(lambda x, *weights, **__: _rnn_count(x, weights[:2]))
_register("mkldnn_rnn_layer_backward")(lambda x, *weights, **__: 2 * _rnn_count(x, weights[:2]))
_register("_cudnn_rnn", "miopen_rnn")(lambda x, weights, *_, **__: _rnn_count(x, weights))
_register("_cudnn_rnn_backward", "miopen_rnn_backward")(lambda x, weights, *_, **__: 2 * _rnn_count(x, weights))


@_register("_transformer_encoder_layer_fwd")
def _encoder_layer(src: Shape, width: int, *args: Any, **_kwargs: Any) -> int:
    """Count attention, and a feed-forward part of two products."""
    batch, length, inner = math.prod(src[:-2]), src[-2], int(args[_FEED_FORWARD][0])
    return _multi_head_count(batch, length, length, width) + 4 * batch * length * width * inner


_PRODUCTS = {
    f"aten::{name}": getattr(torch.ops.aten, name)
    for name in ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "mv", "addmv", "dot")
}
