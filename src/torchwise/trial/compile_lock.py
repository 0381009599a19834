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

from torchwise._torch import inductor
from torchwise._torch.dynamo import COMPILE_FRAME
from torchwise._torch.private_name import check
from torchwise.errors import UnsupportedError
from torchwise.measure import device_lock

WHO = "compiling while another process measures"
NAMES = (COMPILE_FRAME, inductor.GENERATE_CODE, inductor.FREEZE, inductor.BENCHMARKER, inductor.CONFIG)
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
    benchmarker = inductor.BENCHMARKER.get(WHO)
    with contextlib.ExitStack() as wrapped:
        for method in (TIMES, ALSO_RUNS):
            if hasattr(benchmarker, method):
                wrapped.enter_context(_within(device_lock.share_temporarily, benchmarker, method))
        for context, name in (
            (_release_for_trace, COMPILE_FRAME),
            (_release_for_compile, inductor.GENERATE_CODE),
            (device_lock.share_temporarily, inductor.FREEZE),
        ):
            wrapped.enter_context(_within(context, importlib.import_module(name.module), name.attribute))
        yield


def _is_known() -> bool:
    try:
        check(WHO, NAMES)
    except UnsupportedError:
        return False
    return hasattr(inductor.BENCHMARKER.get(WHO), TIMES)


def _release_for_trace() -> AbstractContextManager[None]:
    """Step aside for one frame, after the queued work on the GPU, such as the graph before this one, has ended."""
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    return device_lock.aside()


def _release_for_compile() -> AbstractContextManager[None]:
    """Step aside for one graph, unless its options let Inductor time kernels elsewhere. They are set meanwhile."""
    config = inductor.CONFIG.get(WHO)
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
