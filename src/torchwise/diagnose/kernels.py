"""What runs in one call: kernels with their time, bytes, FLOPs and share of the roofline, and the host's time.

On a CPU the outermost operators are the kernels, and the functions that Inductor wrote, which report themselves where
`PROFILED` is set. On a GPU they are what ran there, however it was launched.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from torchwise.diagnose.observed import Shapes, Work
from torchwise.measure import Clock, turns
from torchwise.measure.peaks import bandwidth, matrix_rate
from torchwise.records.explanation import Kernel, Limits

PROFILED = "cpp.enable_kernel_profile"
"""Inductor's option with which generated C++ reports itself to the profiler; it costs nothing that can be measured."""
CALLS = 3
LIMITS_S = 0.25
"""Seconds for each of the two limits."""
_LOOKUP = "TorchDynamo Cache Lookup"
_REGION = "Torch-Compiled Region"
_GENERATED = re.compile(r"^(?:graph_\d+_)?((?:cpp|triton)_\w+)$")
_VIEWS = (
    "empty empty_strided as_strided view detach alias t transpose permute expand slice select unsqueeze squeeze "
    "lift_fresh resolve_conj resolve_neg _unsafe_view result_type"
)
_NO_WORK = frozenset(f"aten::{name}" for name in _VIEWS.split())
"""Operators that touch no element: their time is the host's."""
_PRODUCTS = {f"aten::{name}": getattr(torch.ops.aten, name) for name in ("mm", "addmm", "bmm", "baddbmm")}


@dataclass
class Profiled:
    """What the profiler saw in one call.

    Attributes:
        kernels: the longest first.
        busy_s: seconds in which a kernel ran.
        guards_s: seconds of Dynamo's look-up and guards.
        lookups: how many of them there were.
        regions: compiled graphs that ran.
    """

    kernels: tuple[Kernel, ...] = ()
    busy_s: float = 0.0
    guards_s: float = 0.0
    lookups: float = 0.0
    regions: float = 0.0


@dataclass
class _Sum:
    calls: int = 0
    seconds: float = 0.0
    nbytes: float = 0.0
    flops: float = 0.0

    def add(self, seconds: float, work: Work, calls: int = 1) -> None:
        self.calls += calls
        self.seconds += seconds
        self.nbytes += work.nbytes
        self.flops += work.flops


def profile(
    call: Callable[[], Any],
    device: str,
    limits: Limits,
    *,
    nbytes: Mapping[str, float],
    work: Mapping[tuple[str, Shapes], Work],
) -> Profiled:
    """Run `call` a few times under PyTorch's profiler.

    Args:
        call: warm already.
        device: "cpu" or "cuda".
        limits: of the hardware.
        nbytes: of generated kernels, by name.
        work: of operators by name and shapes, as the plain model had it.
    """
    events = _events(call, device)
    seen = Profiled()
    for event in events:
        if event.name.startswith(_LOOKUP):
            seen.guards_s += event.time_range.elapsed_us() / 1e6 / CALLS
            seen.lookups += 1 / CALLS
        elif event.name.startswith(_REGION):
            seen.regions += 1 / CALLS
    sums = (_on_gpu if device == "cuda" else _on_cpu)(events, lambda event: _work(event, nbytes, work))
    seen.kernels = tuple(
        sorted((_kernel(name, found, limits) for name, found in sums.items()), key=lambda k: -k.seconds)
    )
    seen.busy_s = sum(kernel.seconds for kernel in seen.kernels)
    return seen


def measured_limits(device: str, dtype: torch.dtype) -> Limits:
    """Measure what the hardware can do in a call of this dtype, for about half a second."""
    exact = dtype if dtype.is_floating_point else torch.float32
    with turns.alone():
        return Limits(bandwidth(device, LIMITS_S), matrix_rate(exact, device, LIMITS_S))


def _events(call: Callable[[], Any], device: str) -> list[Any]:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with turns.alone():
        with profiler(activities=activities):  # the first use of the profiler is slow, and would be seen
            call()
        with profiler(activities=activities, record_shapes=True) as profiled:
            for _ in range(CALLS):
                call()
            Clock(device).synchronize()
    return list(profiled.events() or ())


def _on_cpu(events: list[Any], work: Callable[[Any], Work]) -> dict[str, _Sum]:
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for event in events:
        if _is_outermost(event) and event.name not in _NO_WORK:
            sums[_short(event.name)].add(event.time_range.elapsed_us() / 1e6, work(event))
    return sums


def _on_gpu(events: list[Any], work: Callable[[Any], Work]) -> dict[str, _Sum]:
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for event in events:
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            sums[event.name].add(event.time_range.elapsed_us() / 1e6, Work(0.0))
    for event in events:  # what an operator does counts for the longest kernel that it launched
        launched = _launched(event) if event.device_type.name == "CPU" and _is_outermost(event) else []
        longest = max(launched, key=lambda kernel: kernel.duration, default=None)
        if longest is not None and longest.name in sums:
            sums[longest.name].add(0.0, work(event), calls=0)
    return sums


def _launched(event: Any) -> list[Any]:
    return [*event.kernels, *(kernel for child in event.cpu_children for kernel in _launched(child))]


def _is_outermost(event: Any) -> bool:
    """Whether an event is an operator or a generated kernel, and not a part of one."""
    return _is_work(event.name) and not (event.cpu_parent is not None and _has_work(event.cpu_parent))


def _has_work(event: Any) -> bool:
    return _is_work(event.name) or (event.cpu_parent is not None and _has_work(event.cpu_parent))


def _is_work(name: str) -> bool:
    return bool(_GENERATED.match(name)) or ("::" in name and " " not in name)


def _kernel(name: str, found: _Sum, limits: Limits) -> Kernel:
    nbytes, flops, seconds = found.nbytes / CALLS, found.flops / CALLS, found.seconds / CALLS
    share = limits.share(seconds, nbytes, flops)
    return Kernel(
        name, found.calls / CALLS, seconds, nbytes or None, flops or None, share, bool(_GENERATED.match(name))
    )


def _short(name: str) -> str:
    generated = _GENERATED.match(name)
    return generated[1] if generated else name


def _work(event: Any, nbytes: Mapping[str, float], work: Mapping[tuple[str, Shapes], Work]) -> Work:
    """Return what a generated kernel or an operator has to do; nothing where that is not known."""
    if _GENERATED.match(event.name):
        return Work(nbytes.get(_short(event.name), 0.0))
    shapes = tuple(tuple(shape) for shape in (event.input_shapes or ()) if shape)
    for count in range(len(shapes), 0, -1):  # an operator that writes to a given output has that as one tensor more
        if found := work.get((event.name, shapes[:count])):
            return found
    return Work(0.0, _product(event.name, shapes))


def _product(name: str, shapes: Shapes) -> float:
    """Return the FLOPs of a matrix product, whose shapes say it all; else 0."""
    given = shapes[: 3 if "add" in name else 2]
    try:
        return float(flop_registry[_PRODUCTS[name]](*given))
    except (KeyError, TypeError, ValueError, AssertionError):  # no product, or shapes that are none's
        return 0.0
