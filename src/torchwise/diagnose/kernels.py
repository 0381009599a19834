"""The activity of one call: kernels with their time, bytes, FLOPs and share of the roofline, and the host's time.

On a CPU the kernels are the outermost operators and Inductor's functions, which report themselves if `PROFILED` is set.
On a GPU they are the kernels that ran there, with any kind of launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from torchwise.diagnose.op_trace import VIEWS, Work
from torchwise.diagnose.work import KnownWork, is_operator, kernel_name
from torchwise.measure import device_lock
from torchwise.measure.clock import Clock
from torchwise.measure.profile import bandwidth, matrix_rate
from torchwise.plan import Plan
from torchwise.records.explanation import Kernel, Limits, is_rough

PROFILED = "cpp.enable_kernel_profile"
"""Inductor's option that makes generated C++ report itself to the profiler. Its cost is too small to measure."""
CALLS = 5
"""Profiled calls. The call whose time is closest to the timed call represents it, as the other calls were disturbed."""
LIMITS_S = 0.25
"""Seconds for each of the two limits."""
_CALL = "torchwise.call"
_LOOKUP = "TorchDynamo Cache Lookup"
_REGION = "Torch-Compiled Region"


@dataclass(frozen=True, slots=True)
class Profiled:
    """The profiler's view of one call.

    All seconds are on the scale of the timed call.

    Attributes:
        kernels: the longest first. When several run at a time, they share that time.
        busy_s: seconds in which a kernel ran, which is the sum of the kernels' seconds.
        guards_s: seconds of Dynamo's cache lookups and guards.
        lookups: number of cache lookups.
        regions: number of compiled graphs that ran.
        inflation: time of the call under the profiler over its time without.
    """

    kernels: tuple[Kernel, ...] = ()
    busy_s: float = 0.0
    guards_s: float = 0.0
    lookups: float = 0.0
    regions: float = 0.0
    inflation: float = 1.0


@dataclass
class _Sum:
    """The sum of all kernels of one name. Its work is known if the work of each kernel is known."""

    calls: int = 0
    seconds: float = 0.0
    nbytes: float = 0.0
    flops: float = 0.0
    with_bytes: int = 0
    with_flops: int = 0

    def add_work(self, work: Work) -> None:
        self.nbytes += work.nbytes or 0.0
        self.with_bytes += work.nbytes is not None
        self.flops += work.flops or 0.0
        self.with_flops += work.flops is not None


def profiler_options(device: str) -> dict[str, Any]:
    """Return the options of Inductor that make generated code report to the profiler."""
    return {PROFILED: True} if device == "cpu" else {}


def with_profiler(plan: Plan, device: str) -> Plan:
    """Return a plan whose generated code reports to the profiler, if it has such code."""
    can_report = device == "cpu" and plan.backend == "inductor"
    return plan.with_choice("options", (PROFILED, True)) if can_report else plan


def profile(call: Callable[[], Any], device: str, call_s: float, limits: Limits | None, known: KnownWork) -> Profiled:
    """Run `call`, which is warm, a few times under PyTorch's profiler.

    Args:
        call_s: seconds of the call by the clock, without a profiler.
        limits: of the hardware, or None if the call could not be timed. Without them, no kernel has a share.
    """
    window, events = _closest(_events(call, device), call_s)
    if window is None:
        return Profiled()
    on_gpu, host = device == "cuda", window.time_range.elapsed_us() / 1e6 / call_s
    active_events = [event for event in events if (_ran_on_gpu(event) if on_gpu else _is_outermost(event))]
    active_events = [event for event in active_events if event.name not in VIEWS]
    busy = _active_seconds(active_events) / call_s
    inflation = max(busy, 1.0) if on_gpu else host  # a GPU times its own kernels, even if something delays the host
    sums = (_sums_on_gpu if on_gpu else _sums_on_cpu)(active_events, events, known)
    total_s = sum(total.seconds for total in sums.values())
    scale = busy * call_s / total_s / inflation if total_s else 0.0
    kernels = [_kernel(name, total, scale, None if is_rough(inflation) else limits) for name, total in sums.items()]
    lookups = [event for event in events if event.name.startswith(_LOOKUP)]
    return Profiled(
        tuple(sorted(kernels, key=lambda kernel: -kernel.seconds)),
        total_s * scale,
        sum(event.time_range.elapsed_us() for event in lookups) / 1e6 / max(host, 1.0 if on_gpu else 0.0),
        len(lookups),
        sum(event.name.startswith(_REGION) for event in events),
        inflation,
    )


def average_profiles(profiles: Sequence[Profiled], weights: Sequence[float]) -> Profiled:
    """Return the mean call over several examples."""
    rows: dict[str, list[tuple[float, Kernel]]] = defaultdict(list)
    for weight, one in zip(weights, profiles, strict=True):
        for kernel in one.kernels:
            rows[kernel.name].append((weight, kernel))

    def mean(name: str) -> float:
        return float(sum(weight * getattr(one, name) for weight, one in zip(weights, profiles, strict=True)))

    kernels = sorted((_average_kernel(row) for row in rows.values()), key=lambda kernel: -kernel.seconds)
    figures = [field.name for field in fields(Profiled) if field.name != "kernels"]
    return Profiled(tuple(kernels), **{name: mean(name) for name in figures})


def _average_kernel(row: list[tuple[float, Kernel]]) -> Kernel:
    def mean(read: Callable[[Kernel], float | None]) -> float | None:
        each = [read(kernel) for _, kernel in row]
        known = [weight * value for (weight, _), value in zip(row, each, strict=True) if value is not None]
        return sum(known) if len(known) == len(each) else None

    seconds = sum(weight * kernel.seconds for weight, kernel in row)
    weighted_share_s = mean(lambda kernel: None if kernel.share is None else kernel.share * kernel.seconds)
    return replace(
        row[0][1],
        calls=sum(weight * kernel.calls for weight, kernel in row),
        seconds=seconds,
        nbytes=mean(lambda kernel: kernel.nbytes),
        flops=mean(lambda kernel: kernel.flops),
        share=None if weighted_share_s is None or not seconds else weighted_share_s / seconds,
    )


def measure_limits(device: str, dtype: torch.dtype) -> Limits:
    """Measure the hardware's limits in a call of this dtype, for about half a second."""
    exact = dtype if dtype.is_floating_point else torch.float32
    with device_lock.alone():
        return Limits(bandwidth(device, LIMITS_S), matrix_rate(exact, device, LIMITS_S))


def _events(call: Callable[[], Any], device: str) -> list[Any]:
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as profiler

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    clock = Clock(device)
    with device_lock.alone():
        with profiler(activities=activities):  # the first use of the profiler is slow, and would appear in the result
            call()
        with profiler(activities=activities, record_shapes=True) as profiled:
            for _ in range(CALLS):
                with record_function(_CALL):
                    call()
                    clock.synchronize()
    return list(profiled.events() or ())


def _closest(events: Sequence[Any], call_s: float) -> tuple[Any, list[Any]]:
    """Return the profiled call that took closest to the timed one, with the events within it."""
    calls = [event for event in events if event.name == _CALL and event.device_type.name == "CPU"]
    window = min(calls, key=lambda event: abs(event.time_range.elapsed_us() / 1e6 - call_s), default=None)
    if window is None or not call_s:
        return None, []
    start, end = window.time_range.start, window.time_range.end
    within = [event for event in events if start <= event.time_range.start <= end and event.name != _CALL]
    return window, within


def _sums_on_cpu(active_events: Iterable[Any], _events: Iterable[Any], known: KnownWork) -> dict[str, _Sum]:
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for event in active_events:
        total = sums[kernel_name(event.name) or event.name]
        total.calls += 1
        total.seconds += event.time_range.elapsed_us() / 1e6
        total.add_work(known.work_of(event))
    return sums


def _sums_on_gpu(active_events: Iterable[Any], events: Iterable[Any], known: KnownWork) -> dict[str, _Sum]:
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for event in active_events:
        sums[event.name].calls += 1
        sums[event.name].seconds += event.time_range.elapsed_us() / 1e6
    for event in events:  # an operator's work counts for the longest kernel that it launched
        launched = _collect_kernels(event) if event.device_type.name == "CPU" and _is_outermost(event) else []
        longest = max(launched, key=lambda kernel: kernel.duration, default=None)
        if longest is not None and longest.name in sums:
            sums[longest.name].add_work(known.work_of(event))
    return sums


def _active_seconds(events: Iterable[Any]) -> float:
    """Return the seconds in which at least one of the events is active."""
    covered = end = 0.0
    for span in sorted((event.time_range for event in events), key=lambda span: span.start):
        covered += max(span.end - max(span.start, end), 0.0)
        end = max(end, span.end)
    return covered / 1e6


def _collect_kernels(event: Any) -> list[Any]:
    return [*event.kernels, *(kernel for child in event.cpu_children for kernel in _collect_kernels(child))]


def _ran_on_gpu(event: Any) -> bool:
    return event.device_type.name == "CUDA" and not event.is_user_annotation


def _is_outermost(event: Any) -> bool:
    """Return whether an event is an operator or a generated kernel, and not a part of one."""
    return is_operator(event.name) and not (event.cpu_parent is not None and _has_work(event.cpu_parent))


def _has_work(event: Any) -> bool:
    return is_operator(event.name) or (event.cpu_parent is not None and _has_work(event.cpu_parent))


def _kernel(name: str, total: _Sum, scale: float, limits: Limits | None) -> Kernel:
    """Return a kernel, without a share of the roofline if there are no limits, as for a rough profile."""
    seconds = total.seconds * scale
    nbytes = total.nbytes if total.with_bytes == total.calls else None
    flops = total.flops if total.with_flops == total.calls else None
    share = limits.share(seconds, nbytes, flops) if limits else None
    return Kernel(name, total.calls, seconds, nbytes, flops, share, kernel_name(name) is not None)
