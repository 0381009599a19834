"""Millions of calls of random sizes: constant memory, nothing compiled after the freeze, right answers, p50 and p99.

Sizes come from a heavy-tailed mix: many small ones, few large ones, now and then one beyond every bucket. Answers are
compared with the original's for one call in `--sample`. It ends with status 1 where memory grows, something is
compiled, or an answer is wrong.

Run it: python benchmarks/soak.py --calls 10_000_000
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import psutil
import torch

import torchwise
from torchwise import environment, shapes
from torchwise.plan import Plan
from torchwise.workload import Example, WorkloadSpec
from torchwise.workload.identity import describe_example, structure

WIDTH = 16
LARGEST = 64
MOST_GROWTH = 16 * 2**20
"""Bytes by which memory may grow after a tenth of the calls: a leak of 16 bytes a call would be 160 MB."""


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            torch.nn.LayerNorm(WIDTH),
            torch.nn.Linear(WIDTH, 32),
            torch.nn.Linear(32, WIDTH),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sample", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)  # calls are tiny: threads that wait for each other would be all that is timed
    with torch.no_grad():
        sys.exit(soak(options.calls, options.device, options.sample))


def soak(calls: int, device: str, sample: int) -> int:
    torch.manual_seed(0)
    drawn = np.random.default_rng(0)
    model = Block().to(device).eval()
    fast = served(model, device, drawn)
    shapes.warm_up(fast, print)
    inputs = torch.randn(4 * LARGEST, WIDTH, device=device)
    microseconds, memory = np.zeros(100_000), list[int]()  # percentiles of at most so many calls: it must not grow
    wrong = 0
    for number in range(calls):
        if number % 65_536 == 0:
            batch = sizes(drawn, 65_536)
        if number % max(calls // 10, 1) == 0:
            memory.append(psutil.Process().memory_info().rss)
            print(f"{number:12,} calls, {memory[-1] / 2**20:.1f} MiB, {wrong} wrong", flush=True)
        x = inputs[: batch[number % 65_536]]
        start = time.perf_counter()
        answer = fast(x)
        if device == "cuda":
            torch.cuda.synchronize()
        microseconds[number % len(microseconds)] = (time.perf_counter() - start) * 1e6
        if number % sample == 0:
            wrong += not torch.allclose(answer, model(x), rtol=1e-4, atol=1e-5)
    memory.append(psutil.Process().memory_info().rss)
    return report(fast, microseconds[:calls], memory, wrong, calls, sample)


def sizes(drawn: np.random.Generator, count: int) -> list[int]:
    """Draw sizes of a Pareto distribution: the largest are beyond every bucket."""
    found: list[int] = np.minimum(1 + drawn.pareto(1.2, count) * 6, 4 * LARGEST).astype(int).tolist()
    return found


def served(model: torch.nn.Module, device: str, drawn: np.random.Generator) -> torch.nn.Module:
    """Serve a plan that compiles, without a search: what is looked at is what comes after it."""
    seen = [size for size in sizes(drawn, 100_000) if size <= LARGEST]
    example = torch.randn(LARGEST, WIDTH, device=device)
    buckets = shapes.buckets_for(seen)
    proof = shapes.prove(model, (example,), padding=shapes.Padding({"x": 0}), buckets=buckets)
    capture = "call" if device == "cuda" else "none"
    decision = torchwise.Decision(
        plan=Plan(backend="inductor", capture=capture),
        reason="it is to be soaked",
        speedup=None,
        break_even_calls=None,
        saved_s=0.0,
        baseline_s=0.0,
        cold_s=0.0,
        warm_s=None,
        workload=WorkloadSpec("live:soak", device=device),
        identity="soak",
        structure=structure(model),
        inputs=tuple(describe_example(Example((example[:bucket].clone(),))) for bucket in buckets),
        environment=environment.detect(device),
    )
    here = decision.environment
    print(f"{here.gpu or here.cpu}, torch {torch.__version__}, {decision.plan}, buckets {buckets}")
    return shapes.apply_buckets(model, decision, proof)


def report(
    fast: torch.nn.Module, microseconds: np.ndarray, memory: list[int], wrong: int, calls: int, sample: int
) -> int:
    counts, settled = shapes.counts_of(fast), memory[1] if len(memory) > 2 else memory[0]
    growth = memory[-1] - settled
    p50, p99 = np.percentile(microseconds, (50, 99))
    share = counts.beyond / calls
    print(f"{calls:,} calls: p50 {p50:.1f} us, p99 {p99:.1f} us; {growth / 2**20:+.1f} MiB since the first tenth")
    print(f"padding {counts.padded_share:.1%} of what was computed; {share:.2%} of the calls beyond the largest bucket")
    print(f"since the freeze: {counts.compiles} compiled, {counts.first_calls} first calls")
    print(f"{wrong} wrong of {-(-calls // sample):,} compared; by reason: {dict(fast.statistics.original)}")
    odd = sum(fast.statistics.original.values()) - counts.beyond
    return int(bool(wrong or counts.compiles or counts.first_calls or odd or growth > MOST_GROWTH))


if __name__ == "__main__":
    main()
