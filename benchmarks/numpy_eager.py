"""The time of eager on a program that uses NumPy, before and after something was compiled in the process.

The default is `zoo:tutorial.break_numpy@large`: several threads on the host round NumPy's float64 result.

Run it: taskset -c 0-3 python benchmarks/numpy_eager.py --device cuda
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch

from torchwise import environment
from torchwise.measure.clock import Clock
from torchwise.workload import target

CALLS = 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="?", default="zoo:tutorial.break_numpy@large")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    workload, clock = target.load(options.target, device=options.device, seed=0), Clock(options.device)
    inputs, call = workload.examples[0].args, workload.call
    here = environment.detect(options.device)
    print(f"{here.gpu or here.cpu}, torch {torch.__version__}, {options.target}, ms per call")
    with torch.no_grad():
        for threads in options.threads:
            torch.set_num_threads(threads)
            print(f"{threads} threads, nothing compiled: eager {time_calls(clock, call, inputs)}")
        compiled = torch.compile(call)
        compiled(*inputs)
        for threads in options.threads:
            torch.set_num_threads(threads)
            print(
                f"{threads} threads: eager {time_calls(clock, call, inputs)}, "
                f"default {time_calls(clock, compiled, inputs)}"
            )


def time_calls(clock: Clock, call: Callable[..., Any], inputs: tuple[Any, ...]) -> str:
    """Return the median and the range of 90 % of the calls, in ms."""
    seconds = sorted(clock.once(lambda: call(*inputs)) * 1e3 for _ in range(CALLS))
    low, high = seconds[CALLS // 20], seconds[-CALLS // 20]
    return f"{statistics.median(seconds):.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
