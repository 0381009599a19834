"""Run a suite in pieces, on several GPUs at once, with one `torchwise bench` per target and merged results.

Each piece starts no new contender after --budget seconds, so that it ends within some minutes of it. The next call
continues where this one ended. Rows from different machines or software are never merged: `torchwise bench --resume`
refuses.

With --beside 3, three targets run on each GPU. One compiles while another measures, and the measuring one is alone on
the device (`torchwise.measure.device_lock`). If there are two CPU cores for each running target, each has its own
cores, as TORCHWISE_OWN_CORES=1 tells it. A measuring one then waits for no other's compiler. The number of cores is
part of a row's environment. So results that began with all cores of a GPU continue with all cores. There, and with
fewer cores or no GPU, the targets of a GPU share its cores. A measuring one then waits until the others have compiled,
and cold first calls share the cores.

Any free lane takes the next target. The rows are kept beside the results meanwhile (results.part-0.json), so a killed
run loses only the running contenders. Other options are passed to `torchwise bench`.

Run it: python benchmarks/run_suite.py benchmarks/suites/zoo-h200.toml results.json --gpus 0,1,2,3 --budget 500
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from core_shares import shares_of

from torchwise.bench import read_suite, resolve_targets
from torchwise.measure.device_lock import OWN_CORES
from torchwise.records.benchmark import Benchmark

POLLED_S = 0.2
CORES_OF_ITS_OWN = 2
"""Minimum number of own cores of a lane, which otherwise shares its GPU's: compilers and timed calls take one each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("results", type=Path, help="a .json file; it is continued if it exists")
    parser.add_argument("--gpus", default="", help="GPUs to use side by side, as 0,1,2; none for a suite on the CPU")
    parser.add_argument("--beside", type=int, default=1, help="targets under way on each GPU at once")
    parser.add_argument("--budget", type=float, default=500.0, help="seconds after which no further contender starts")
    parser.add_argument("--only", nargs="+", help="only targets that contain one of these words")
    parser.add_argument(
        "--without", nargs="+", type=Path, default=[], help="results whose complete targets are left out"
    )
    options, options.bench = parser.parse_known_args()
    suite = read_suite(options.suite)
    targets = resolve_targets(suite.targets, suite.sizes)
    if options.only:
        targets = [target for target in targets if any(word in target for word in options.only)]
    for other in options.without:
        targets = list_unfinished(targets, suite.contenders, Benchmark.from_json(other.read_bytes()))
    merge(options.results)  # the parts of a killed run
    done = read(options.results)
    targets = list_unfinished(targets, suite.contenders, done)
    gpus = options.gpus.split(",") if options.gpus else [""]
    begun_with = done.environment.cpus if done else None
    lanes = lanes_on(gpus, sorted(os.sched_getaffinity(0)), options.beside, begun_with)
    try:
        work(options, targets, done, lanes)
    finally:
        merge(options.results)
    left = list_unfinished(targets, suite.contenders, read(options.results))
    print(f"{len(left)} targets are left to run" + (": run this again" if left else ""))


def list_unfinished(targets: list[str], contenders: tuple[str, ...], done: Benchmark | None) -> list[str]:
    """Return the targets that lack a row of some contender. Refused ones count, as they may have been fixed since."""
    have = {(row.workload.target, row.contender) for row in done.rows if not row.refused} if done else set()
    return [target for target in targets if any((target, name) not in have for name in contenders)]


@dataclass(frozen=True)
class Lane:
    """The place of one benchmark at a time.

    Attributes:
        gpu: the GPU's number, or "" for the CPU.
        cores: its CPU cores.
        own: whether no other lane has these cores.
    """

    gpu: str
    cores: set[int]
    own: bool


def lanes_on(gpus: list[str], cores: list[int], beside: int, begun_with: int | None = None) -> list[Lane]:
    """Return `beside` lanes on each GPU, each with its own cores if there are two per lane.

    Cores are those that Linux counts. If it counts a core twice, as two threads, two lanes may share one.

    Args:
        gpus: the GPUs' numbers, or one empty string for the CPU. The CPU cannot be divided, as its cores are measured.
        cores: all available cores.
        beside: number of lanes on each GPU.
        begun_with: number of cores of the results to continue, as other numbers are refused there.
    """
    each = len(cores) // (len(gpus) * beside)
    own = beside > 1 and gpus != [""] and each >= CORES_OF_ITS_OWN and begun_with in (None, each)
    shares = shares_of(cores, len(gpus) * beside) if own else shares_of(cores, len(gpus)) * beside
    return [Lane(gpu, share, own) for gpu, share in zip(gpus * beside, shares, strict=True)]


def work(options: argparse.Namespace, targets: list[str], done: Benchmark | None, lanes: list[Lane]) -> None:
    """Run the targets in their order, one at a time on each lane, until all are done or the budget is spent."""
    end = time.monotonic() + options.budget
    waiting = list(targets)
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while True:
            running = {number: run for number, run in running.items() if run.poll() is None}
            for number, lane in enumerate(lanes):
                left = end - time.monotonic()
                if waiting and number not in running and left > 0:
                    running[number] = start(options, waiting.pop(0), done, number, lane, left)
            if not running:
                return
            time.sleep(POLLED_S)
    finally:
        for run in running.values():  # an interrupt also reaches them, and each keeps its finished rows
            run.wait()


def start(
    options: argparse.Namespace, target: str, done: Benchmark | None, number: int, lane: Lane, left: float
) -> subprocess.Popen[bytes]:
    """Start the benchmark of one target on a lane, continuing its existing rows."""
    part = options.results.with_suffix(f".part-{number}.json")
    found = read(part) or (replace(done, rows=()) if done else None)  # the lane's rows so far, and its GPU's peaks
    if found:
        earlier = tuple(row for row in done.rows if row.workload.target == target) if done else ()
        part.write_text(replace(found, rows=(*found.rows, *earlier)).to_json())
    command = [sys.executable, "-m", "torchwise.cli", "bench", target, "--suite", str(options.suite)]
    command += ["--resume", str(part), "--budget", f"{max(left, 1):.0f}", *options.bench]
    return start_on(lane, command)


def start_on(lane: Lane, command: list[str]) -> subprocess.Popen[bytes]:
    """Start a command with the GPU and the cores of a lane."""
    environment = {**os.environ, OWN_CORES: "1" if lane.own else "0"}
    if lane.gpu:
        environment["CUDA_VISIBLE_DEVICES"] = lane.gpu
    return subprocess.Popen(command, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, lane.cores))


def merge(results: Path) -> None:
    """Add the rows of every part to the existing results, and remove the parts."""
    parts = sorted(results.parent.glob(f"{results.stem}.part-*.json"))
    found = [benchmark for file in (results, *parts) if (benchmark := read(file))]
    if not parts or not found:
        return
    rows = {row.key: row for benchmark in found for row in benchmark.rows}
    # The hardware is measured once a target has run, so not by a lane whose targets were all refused.
    peaks = next((benchmark.peaks for benchmark in found if benchmark.peaks), None)
    beside = results.with_suffix(".new")
    beside.write_text(replace(found[0], rows=tuple(rows.values()), peaks=peaks).to_json())
    beside.replace(results)
    for part in parts:
        part.unlink()


def read(file: Path) -> Benchmark | None:
    return Benchmark.from_json(file.read_bytes()) if file.exists() else None


if __name__ == "__main__":
    main()
