"""Which kernels does a call run under a plan, and how long do they take?

Plans run one after the other. Nothing is verified here.

Unlike `torchwise explain` it also takes whole training steps, and any number of plans. Time per call is the median of
seven blocks of twenty queued calls. Time by kernel comes from PyTorch's profiler, scaled to that call.

Run it: python benchmarks/plan_kernels.py zoo:training.relevance_amp@large --mode training --plan '{"schema": …}' …
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

from torchwise import environment
from torchwise.compile import compile_plan
from torchwise.diagnose.kernels import profile
from torchwise.diagnose.work import KnownWork
from torchwise.measure.clock import Clock
from torchwise.plan import Plan
from torchwise.workload import target

BLOCKS, CALLS, SETTLING = 7, 20, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--mode", default="inference", choices=["inference", "training"])
    parser.add_argument("--device", default=environment.default_device(), choices=["cpu", "cuda"])
    parser.add_argument("--plan", action="append", required=True, help="a plan as JSON; may be repeated")
    parser.add_argument("--most", type=int, default=60, help="kernels that are listed")
    options = parser.parse_args()
    here = environment.detect(options.device)
    print(f"{options.target}, {options.mode}, {here.gpu or here.cpu}, torch {here.torch}")
    for plan in map(Plan.from_json, options.plan):
        torch._dynamo.reset()
        with torch.set_grad_enabled(options.mode == "training"):
            show(options, plan)


def show(options: argparse.Namespace, plan: Plan) -> None:
    """Print the times of one plan."""
    workload = target.load(options.target, device=options.device, seed=0)
    example = workload.examples[0]
    compiled = compile_plan(workload.call, plan, example, device=options.device, mode=options.mode)

    def call() -> Any:
        return compiled.call(*example.args, **example.kwargs)

    clock = Clock(options.device, each=False)
    first_s = sum(clock.once(call) for _ in range(SETTLING))
    print(f"\n### {plan}, first calls {first_s:.0f} s")
    call_s = statistics.median(clock.time(call, CALLS).wall_s for _ in range(BLOCKS))
    print(f"{call_s * 1e3:.4f} ms per call")
    seen = profile(call, options.device, call_s, None, KnownWork({}, {}))  # no share of the roofline is needed
    print(f"{seen.busy_s * 1e3:.4f} ms of kernels per call, {sum(kernel.calls for kernel in seen.kernels):.0f} of them")
    for kernel in seen.kernels[: options.most]:
        each_us = kernel.seconds / kernel.calls * 1e6
        print(f"  {kernel.seconds * 1e3:.4f} ms  {kernel.calls:3.0f} × {each_us:6.1f} µs  {kernel.name[:150]}")
    compiled.close()


if __name__ == "__main__":
    main()
