"""How far the clock can be trusted, and the cost per call of a decision to stay with eager.

Three pairs are timed in turn, each as in a search and a benchmark. The first is eager against itself, with an expected
ratio of 1. The second is eager behind `torchwise.apply` against eager, and the third is the reverse. The square root of
the quotient of the latter two is free of any bias towards the candidate's side.

Run it: taskset -c 0-3 python benchmarks/against_itself.py zoo:tutorial.break_print@medium --device cuda
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from dispatch import apply_plan

from torchwise import environment
from torchwise.measure.clock import Clock
from torchwise.measure.paired_timing import MIN_ROUND_S, Mix, Precision, measure_pair
from torchwise.plan import Plan
from torchwise.records import Interval
from torchwise.trial.loading import runner
from torchwise.workload import Workload, target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--block-ms", type=float, default=MIN_ROUND_S * 1e3)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each pair")
    options = parser.parse_args()
    here = environment.detect(options.device)
    print(f"{here.gpu or here.cpu}, torch {torch.__version__}, blocks of {options.block_ms:g} ms")
    print("speed of the first over that of the second")
    precision = Precision(1e-6, options.seconds, options.block_ms / 1e3)  # use all the given time
    with torch.no_grad():
        for name in options.targets:
            workload = target.load(name, device=options.device, seed=0)
            kept = apply_plan(workload.call, Plan(), workload.examples[0], options.device)
            sides = {"eager": workload.call, "kept": kept}
            found = [compare(sides, workload, Clock(options.device), precision, name) for _ in range(options.times)]
            summarize(name, found)


def compare(
    sides: dict[str, Callable[..., Any]], workload: Workload, clock: Clock, precision: Precision, name: str
) -> tuple[float, float]:
    """Time the three pairs once, and return eager over itself, and kept over eager from both orders."""

    def speed(candidate: str, baseline: str) -> Interval:
        mixes = [
            Mix((runner(sides[side], workload.examples[0], "inference"),), (1.0,)) for side in (candidate, baseline)
        ]
        for mix in mixes:
            clock.once(mix.calls[0])
        return measure_pair(*mixes, clock, precision).speedup

    pairs = [("eager", "eager"), ("kept", "eager"), ("eager", "kept")]
    itself, kept, reverse = (speed(*pair) for pair in pairs)
    figures = [
        f"{a}/{b} {s.mid:.3f} [{s.low:.3f}, {s.high:.3f}]"
        for (a, b), s in zip(pairs, (itself, kept, reverse), strict=True)
    ]
    print(f"{name}: {', '.join(figures)}", flush=True)
    return itself.mid, math.sqrt(kept.mid / reverse.mid)


def summarize(name: str, found: list[tuple[float, float]]) -> None:
    for what, values in zip(("eager/eager", "kept/eager, both orders"), zip(*found, strict=True), strict=True):
        print(f"{name}: {what}: median {statistics.median(values):.4f}, {min(values):.3f} to {max(values):.3f}")


if __name__ == "__main__":
    main()
