"""Processor time of a call under launch environments: allocators, huge pages and settings of glibc's allocator.

Each environment has processes of its own, which take turns for --rounds rounds. A process uses one thread, and counts
the processor time of each call, that of the kernel included. So other programs on the machine matter less. A row shows
the least time of a call in each round, plain over it, and the page faults of a call. An allocator that is not installed
is left out.

Run it: python benchmarks/launch_environment.py benchmarks/served_targets.py:resnet50@8
TARGET@TIMES repeats the inputs along their first dimension.
"""

from __future__ import annotations

import argparse
import ctypes.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import torch

from torchwise.workload.target import load

TARGETS = (
    "benchmarks/served_targets.py:resnet50@8",
    "benchmarks/served_targets.py:unet@4",
    "benchmarks/served_targets.py:recommender@8",
)
KEPT = 1 << 33
"""Bytes up to which glibc keeps memory that was freed, instead of returning it to the kernel after each call."""
PLAIN = "plain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET@TIMES")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", metavar="TARGET@TIMES", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.calls)))
        return
    print(f"PyTorch {torch.__version__}, one thread, {options.rounds} processes each")
    for target in options.targets:
        compare(target, options)


def list_environments() -> dict[str, dict[str, str]]:
    """Return the variables of each environment by its name."""
    found = {
        PLAIN: {},
        "glibc keeps memory": {"MALLOC_MMAP_THRESHOLD_": str(KEPT), "MALLOC_TRIM_THRESHOLD_": str(KEPT)},
        "huge pages": {"THP_MEM_ALLOC_ENABLE": "1"},
    }
    libraries = {name: ctypes.util.find_library(name) for name in ("jemalloc", "tcmalloc_minimal")}
    return found | {name: {"LD_PRELOAD": library} for name, library in libraries.items() if library}


def compare(target: str, options: argparse.Namespace) -> None:
    """Print a row for each environment."""
    environments = list_environments()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in environments}
    for _ in range(options.rounds):
        for name, variables in environments.items():
            command = [sys.executable, __file__, "--measure", target, "--calls", str(options.calls)]
            done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
            found[name].append(tuple(json.loads(done.stdout.splitlines()[-1])))
    print(target)
    for name, rounds in found.items():
        ratios = [plain[0] / own[0] for plain, own in zip(found[PLAIN], rounds, strict=True)]
        times = ", ".join(f"{seconds * 1e3:.1f}" for seconds, _ in rounds)
        faults = statistics.median(count for _, count in rounds)
        speed = f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
        print(f"  {name:20} {speed}  {times} ms  {faults:.0f} page faults", flush=True)


def measure(target: str, calls: int) -> tuple[float, float]:
    """Return the least processor seconds of a call, and its page faults."""
    torch.set_num_threads(1)
    name, _, times = target.rpartition("@")
    workload = load(name)
    inputs = tuple(t.repeat(int(times), *[1] * (t.dim() - 1)) for t in workload.examples[0].args)
    seconds = []
    with torch.no_grad():
        for _ in range(2):
            workload.call(*inputs)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(calls):
            start = time.process_time()
            workload.call(*inputs)
            seconds.append(time.process_time() - start)
    return min(seconds), (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls


if __name__ == "__main__":
    main()
