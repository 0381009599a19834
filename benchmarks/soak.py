"""Make millions of calls of random sizes, and check memory, compilations and captures, answers and latencies.

Sizes come from a heavy-tailed mix: many small ones, few large ones, and a few beyond every bucket. One call in
`--sample` is compared with the original's answer. The exit status is 1 if memory grows, if something compiles or
captures after the freeze, or if an answer is wrong. It is also 1 if the original answers for another reason than a size
beyond the buckets.

Results are written every 65,536 calls. To continue a run that was cut by Ctrl-C or `--budget`, pass its JSON to
`--resume`.

Run it: python benchmarks/soak.py --calls 10_000_000 --label epyc-2cpu --out benchmarks/results
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import torchwise
from torchwise import environment
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.runtime import bucketing
from torchwise.workload import Example
from torchwise.workload.identity import describe_example, structure

WIDTH = 16
LARGEST = 64
ROUND = 65_536
"""Calls between two checks of memory and clock."""
MAX_GROWTH = 16 * 2**20
"""Maximum growth in bytes after a tenth of the calls. A leak of 16 bytes per call would be 160 MB."""
STEP = 1.02
"""Ratio of the bounds of a latency bucket. Percentiles are right to 2 %, and the histogram's size is constant."""


@dataclass
class Soak:
    """The results of the calls so far, over several runs if one was continued.

    Attributes:
        asked: requested number of calls.
        machine: hardware, torch and plan.
        calls: calls so far.
        seconds: their duration, including comparisons and memory checks.
        memory: for each run, the resident bytes at the start of each round.
        latencies: calls by bucket. Bucket n starts at `STEP ** n` microseconds.
        compared: calls that the original answered, too.
        wrong: compared calls with different answers.
        beyond: calls of sizes beyond every bucket.
        original: calls that the original answered, by reason.
        compiles: graphs compiled since the freeze.
        captures: CUDA graphs recorded since the freeze.
        first_calls: calls that compiled or captured something since the freeze.
        padded_share: the padded share of the computed sizes in the last run.
    """

    asked: int
    machine: str
    calls: int = 0
    seconds: float = 0.0
    memory: list[list[int]] = field(default_factory=list)
    latencies: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    wrong: int = 0
    beyond: int = 0
    original: dict[str, int] = field(default_factory=dict)
    compiles: int = 0
    captures: int = 0
    first_calls: int = 0
    padded_share: float = 0.0

    @property
    def growth(self) -> int:
        """The maximum growth of a run in bytes, after a tenth of its calls."""
        return max(run[-1] - run[len(run) // 10 or min(1, len(run) - 1)] for run in self.memory)

    @property
    def faults(self) -> list[str]:
        """The failed checks, as sentences."""
        odd = sum(self.original.values()) - self.beyond
        counted = {
            "wrong": self.wrong,
            "compiled": self.compiles,
            "captured": self.captures,
            "first calls": self.first_calls,
            "by the original for another reason than their size": odd,
        }
        grown = [f"memory grew by {self.growth / 2**20:.1f} MiB"] if self.growth > MAX_GROWTH else []
        return [f"{times} {name}" for name, times in counted.items() if times] + grown

    def percentile(self, share: float) -> float:
        """Return a percentile of the latencies in microseconds."""
        counted = sorted((int(bucket), times) for bucket, times in self.latencies.items())
        reached = np.cumsum([times for _, times in counted]) >= share * self.calls
        return float(STEP ** (counted[int(np.argmax(reached))][0] + 1))


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
    parser.add_argument("--budget", type=float, help="seconds after which it stops; without, all calls are made")
    parser.add_argument("--resume", type=Path, help="the JSON of an interrupted run to continue")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sample", type=int, default=1000)
    parser.add_argument("--label", help="hardware, for the names of the files; the device where left out")
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    torch.set_num_threads(1)  # calls are tiny: with more threads, only their waits would be timed
    with torch.no_grad():
        found = soak(options)
    print(write_result(found, options), end="")
    sys.exit(bool(found.faults))


def soak(options: argparse.Namespace) -> Soak:
    torch.manual_seed(0)
    drawn = np.random.default_rng(0)
    model = Block().to(options.device).eval()
    fast = serve_plan(model, options.device, drawn)
    bucketing.warm_up(fast, print)
    here, plan = environment.detect(options.device), fast.decision.plan
    machine = f"{here.gpu or here.cpu}, {here.cpus} CPUs, torch {here.torch}, {plan}"
    found = resume_or_start(options, machine)
    earlier = Counter(found.original), found.compiles, found.captures, found.first_calls, found.beyond
    inputs = torch.randn(4 * LARGEST, WIDTH, device=options.device)
    found.memory.append([])
    drawn = np.random.default_rng(found.calls)
    end = time.monotonic() + (options.budget or float("inf"))
    with contextlib.suppress(KeyboardInterrupt):
        while found.calls < options.calls and time.monotonic() < end:
            found.memory[-1].append(psutil.Process().memory_info().rss)
            one_round(fast, model, inputs, sizes(drawn, min(ROUND, options.calls - found.calls)), options, found)
            add_counts(fast, found, earlier)
            write_result(found, options)
            memory = found.memory[-1][-1] / 2**20
            print(f"{found.calls:12,} calls, {found.seconds:.0f} s, {memory:.1f} MiB, {found.wrong} wrong", flush=True)
    found.memory[-1].append(psutil.Process().memory_info().rss)
    return found


def resume_or_start(options: argparse.Namespace, machine: str) -> Soak:
    """Return the result to continue, or a new one."""
    if options.resume is None:
        return Soak(options.calls, machine)
    kept = json.loads(options.resume.read_text())["soak"]
    if kept["machine"] != machine:
        sys.exit(f"{options.resume} is of {kept['machine']}, and here is {machine}: continue there, or start a new run")
    return Soak(**kept | {"asked": options.calls})


def one_round(
    fast: Any, model: Any, inputs: torch.Tensor, batch: list[int], options: argparse.Namespace, found: Soak
) -> None:
    """Make the calls of a round, and record their latencies."""
    microseconds = np.zeros(len(batch))
    start_s = time.perf_counter()
    for number, size in enumerate(batch):
        x = inputs[:size]
        start = time.perf_counter()
        answer = fast(x)
        if options.device == "cuda":
            torch.cuda.synchronize()
        microseconds[number] = (time.perf_counter() - start) * 1e6
        if number % options.sample == 0:
            found.compared += 1
            found.wrong += not torch.allclose(answer, model(x), rtol=1e-4, atol=1e-5)
    found.seconds += time.perf_counter() - start_s
    found.calls += len(batch)
    buckets = Counter(np.floor(np.log(np.maximum(microseconds, 1.0)) / np.log(STEP)).astype(int).tolist())
    found.latencies = dict(Counter(found.latencies) + Counter({str(n): times for n, times in buckets.items()}))


def add_counts(fast: Any, found: Soak, earlier: tuple[Counter[str], int, int, int, int]) -> None:
    """Add the counts of this run to those of earlier ones."""
    original, compiles, captures, first_calls, beyond = earlier
    sized, counts = bucketing.counts_of(fast), fast.statistics
    found.original = dict(original + counts.original)
    found.compiles, found.captures = compiles + counts.compiles, captures + counts.captures
    found.first_calls, found.beyond = first_calls + (sized.first_calls or 0), beyond + sized.beyond
    found.padded_share = sized.padded_share


def sizes(drawn: np.random.Generator, count: int) -> list[int]:
    """Draw sizes from a Pareto distribution. The largest are beyond every bucket."""
    found: list[int] = np.minimum(1 + drawn.pareto(1.2, count) * 6, 4 * LARGEST).astype(int).tolist()
    return found


def serve_plan(model: torch.nn.Module, device: str, drawn: np.random.Generator) -> torch.nn.Module:
    """Serve a plan that compiles, without a search, which is not the subject here."""
    seen = [size for size in sizes(drawn, 100_000) if size <= LARGEST]
    example = torch.randn(LARGEST, WIDTH, device=device)
    buckets = bucketing.buckets_for(seen)
    proof = bucketing.verify_padding(model, (example,), padding=bucketing.Padding({"x": 0}), buckets=buckets)
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
    print(f"buckets {buckets}")
    return bucketing.apply_buckets(model, decision, proof)


def write_result(found: Soak, options: argparse.Namespace) -> str:
    """Write the result as JSON and as text, and return the text."""
    percentiles = {name: round(found.percentile(share), 1) for name, share in PERCENTILES.items()}
    rate = found.calls / found.seconds
    summary = percentiles | {
        "calls_per_s": round(rate),
        "hours_for_10_million": round(1e7 / rate / 3600, 2),
        "growth_mib": round(found.growth / 2**20, 2),
        "beyond_share": round(found.beyond / found.calls, 5),
        "faults": found.faults,
    }
    lines = [f"Soak, {datetime.date.today()}, {found.machine}", "", "| | |", "|---|---|"]
    rows: dict[str, object] = {
        "calls": f"{found.calls:,} of {found.asked:,}, in {len(found.memory)} runs, {found.seconds:.0f} s",
        "calls per second": f"{rate:,.0f}; ten million take {1e7 / rate / 60:.0f} minutes",
        **{name.replace("_us", ", µs"): value for name, value in percentiles.items()},
        "memory": f"{found.growth / 2**20:+.2f} MiB since the first tenth, of {found.memory[-1][-1] / 2**20:.0f}",
        "compiled, captured, first calls since the freeze": (found.compiles, found.captures, found.first_calls),
        "wrong": f"{found.wrong} of {found.compared:,} compared",
        "beyond the largest bucket": f"{found.beyond / found.calls:.2%}",
        "padding": f"{found.padded_share:.1%} of the computed sizes",
        "by the original": "; ".join(f"{times:,}: {reason}" for reason, times in found.original.items()),
        "faults": "; ".join(found.faults) or "none",
    }
    text = "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items())]) + "\n"
    stem = f"{datetime.date.today()}-{options.label or options.device}-soak"
    options.out.mkdir(parents=True, exist_ok=True)
    Path(options.out, f"{stem}.json").write_text(json.dumps({"summary": summary, "soak": asdict(found)}))
    Path(options.out, f"{stem}.md").write_text(text)
    return text


PERCENTILES = {"p50_us": 0.5, "p99_us": 0.99, "p99.9_us": 0.999, "longest_us": 1.0}

if __name__ == "__main__":
    main()
