"""Compile while others measure: on the CPU's cores, and on the GPU only to time kernels or fold weights.

This module has all the private use of Dynamo and Inductor that this needs. The rest of a call, which runs or records a
finished graph, uses the GPU, and so keeps the worker's share of it. Only two functions step aside: one traces a single
frame with fake tensors, the other turns a single graph into code. They take their share again for each timed kernel and
for folded weights. Kernels whose settings are tuned on their first run are in that share.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchwise.compile.private import check, look_up
from torchwise.errors import UnsupportedError
from torchwise.measure import device_lock

WHO = "compiling while another process measures"
_TRACER = ("torch._dynamo.convert_frame", "_compile")
"""Traces one frame, and has its graphs compiled."""
_COMPILER = ("torch._inductor.compile_fx", "fx_codegen_and_compile")
_FOLDER = ("torch._inductor.freezing", "freeze")
"""Computes values that depend on frozen weights alone."""
_BENCHMARKER = ("torch._inductor.runtime.benchmarking", "benchmarker")
_CONFIG = ("torch._inductor", "config")
NAMES = (_TRACER, _COMPILER, _FOLDER, _BENCHMARKER, _CONFIG)
TIMES = "benchmark_gpu"
"""Method of the benchmarker that times on the GPU, on its own or for its others."""
ALSO_RUNS = "benchmark_gpu_with_cuda_graph"
"""Since torch 2.13: runs and records a callable before it hands it to `TIMES`."""
ELSEWHERE = ("autotune_in_subproc", "pipeline_max_autotune_gemm", "profile_bandwidth_with_do_bench_using_profiling")
"""Settings under which Inductor times kernels in another process, or past its benchmarker, as always for CUTLASS."""


@contextlib.contextmanager
def compiling_aside() -> Iterator[None]:
    """Step aside from the device while Dynamo traces and Inductor compiles, except when they use it.

    It has no effect if `device_lock.may_step_aside` returns False, or if this torch lacks a name that this needs.
    """
    if not (device_lock.may_step_aside() and _is_known()):
        yield
        return
    benchmarker = look_up(WHO, _BENCHMARKER)
    with contextlib.ExitStack() as wrapped:
        for method in (TIMES, ALSO_RUNS):
            if hasattr(benchmarker, method):
                wrapped.enter_context(_within(device_lock.share_temporarily, benchmarker, method))
        for context, (module, function) in (
            (_release_for_trace, _TRACER),
            (_release_for_compile, _COMPILER),
            (device_lock.share_temporarily, _FOLDER),
        ):
            wrapped.enter_context(_within(context, importlib.import_module(module), function))
        yield


def _is_known() -> bool:
    try:
        check(WHO, NAMES)
    except UnsupportedError:
        return False
    return hasattr(look_up(WHO, _BENCHMARKER), TIMES)


def _release_for_trace() -> AbstractContextManager[None]:
    """Step aside for one frame, after the queued work on the GPU, such as the graph before this one, has ended."""
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    return device_lock.aside()


def _release_for_compile() -> AbstractContextManager[None]:
    """Step aside for one graph, unless its options let Inductor time kernels elsewhere. They are set meanwhile."""
    config = look_up(WHO, _CONFIG)
    elsewhere = any(getattr(config, name, False) for name in ELSEWHERE)
    elsewhere |= bool(getattr(config.triton, "autotune_at_compile_time", False))  # torch 2.11, with cpp_wrapper
    elsewhere |= "CUTLASS" in getattr(config, "max_autotune_gemm_backends", "").upper()
    return device_lock.share_temporarily() if elsewhere else _release_for_trace()


@contextlib.contextmanager
def _within(context: Callable[[], AbstractContextManager[None]], owner: Any, name: str) -> Iterator[None]:
    """Run each call of `owner`'s function within a context of its own for a while."""
    original, is_own = getattr(owner, name), name in vars(owner)

    @functools.wraps(original)
    def call_in_context(*args: Any, **kwargs: Any) -> Any:
        with context():
            return original(*args, **kwargs)

    setattr(owner, name, call_in_context)
    try:
        yield
    finally:
        setattr(owner, name, original) if is_own else delattr(owner, name)
