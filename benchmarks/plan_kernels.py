"""Which kernels does a call take under a plan, and how long? GPU time by kernel, for plans one after the other.

Unlike `torchwise explain` it takes whole training steps, too, and any number of plans; nothing is proven here. Time per
call is the median of seven blocks of twenty queued calls; time by kernel comes from PyTorch's profiler, over three.

Run it: python benchmarks/plan_kernels.py zoo:training.relevance_amp@large --mode training --plan '{"schema": …}' …
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from torchwise.plan import Plan
from torchwise.realize import realize
from torchwise.workload import target

BLOCKS, CALLS, PROFILED = 7, 20, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--mode", default="inference", choices=["inference", "training"])
    parser.add_argument("--plan", action="append", required=True, help="a plan as JSON; may be repeated")
    parser.add_argument("--most", type=int, default=60, help="kernels that are listed")
    options = parser.parse_args()
    print(f"{options.target}, {options.mode}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    for plan in map(Plan.from_json, options.plan):
        torch._dynamo.reset()
        show(options, plan)


def show(options: argparse.Namespace, plan: Plan) -> None:
    """Print what one plan takes."""
    workload = target.load(options.target, device="cuda", seed=0)
    example = workload.examples[0]
    made = realize(workload.call, plan, example, device="cuda", mode=options.mode)

    def call() -> Any:
        return made.call(*example.args, **example.kwargs)

    with contextlib.nullcontext() if options.mode == "training" else torch.no_grad():
        begun = time.monotonic()
        for _ in range(5):
            call()
        torch.cuda.synchronize()
        print(f"\n### {plan}, first calls {time.monotonic() - begun:.0f} s")
        print(f"{statistics.median(block(call) for _ in range(BLOCKS)):.4f} ms per call")
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
            for _ in range(PROFILED):
                call()
            torch.cuda.synchronize()
    kernels = [e for e in profiler.key_averages() if e.device_type.name == "CUDA"]
    busy_ms = sum(kernel.self_device_time_total for kernel in kernels) / PROFILED / 1e3
    print(f"{busy_ms:.4f} ms of kernels per call, {sum(kernel.count for kernel in kernels) / PROFILED:.0f} of them")
    for kernel in sorted(kernels, key=lambda kernel: -kernel.self_device_time_total)[: options.most]:
        each = kernel.self_device_time_total / kernel.count
        print(f"  {kernel.self_device_time_total / PROFILED / 1e3:.4f} ms", end="")
        print(f"  {kernel.count / PROFILED:3.0f} × {each:6.1f} µs  {kernel.key[:150]}")
    made.close()


def block(call: Callable[[], Any]) -> float:
    """Return the milliseconds that one of a block of queued calls takes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds / CALLS


if __name__ == "__main__":
    main()
