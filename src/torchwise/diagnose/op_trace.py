"""Observe one call of the original model, operator by operator: FLOPs, and the lines where the host waits for data."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import torchwise
from torchwise._torch.dispatch import TorchDispatchMode
from torchwise.compile.tensor_reads import answering
from torchwise.compile.transforms.numbers_on_gpu import WIDE
from torchwise.diagnose.flops import VIEWS, flops_of, is_counted
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
_MACHINERY = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, torchwise.__file__))
_ZOO = str(Path(torchwise.__file__).parent / "zoo") + os.sep


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
    """A line at which the host waits for data.

    Attributes:
        what: the cause of the wait.
        place: the line.
        times: number of waits in one call.
        reads: the kind of value.
    """

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
    """The observations of one call.

    Attributes:
        work: by operator and the shapes of its tensors.
        waits: by cause and line.
        complex_operators: number of operators with complex numbers.
        operators: number of operators.
    """

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


class _TraceMode(TorchDispatchMode):
    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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
        if not torch.is_inference_mode_enabled() or is_counted(func):
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
