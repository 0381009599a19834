"""Run a suite in pieces, and on several GPUs at once: one `torchwise bench` per GPU, results merged in one file.

Each piece starts no new contender after --budget seconds, so that it ends within some minutes of it; the next call goes
on where this one ended. Rows of unlike machines or software are never merged: `torchwise bench --resume` refuses.

Run it: python benchmarks/run_suite.py benchmarks/suites/zoo-h200.toml results.json --gpus 4 --budget 500
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from torchwise.bench import read_suite, resolve_targets
from torchwise.records.benchmark import Benchmark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("results", type=Path, help="a .json file; it is gone on with where it exists")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs to use side by side")
    parser.add_argument("--budget", default="500", help="seconds after which no further contender starts")
    parser.add_argument("--only", nargs="*", help="only targets that contain one of these words")
    parser.add_argument("options", nargs="*", help="after --: further options of `torchwise bench`")
    options = parser.parse_args()
    suite = read_suite(options.suite)
    targets = resolve_targets(suite.targets, suite.sizes)
    if options.only:
        targets = [target for target in targets if any(word in target for word in options.only)]
    done = Benchmark.from_json(options.results.read_bytes()) if options.results.exists() else None
    targets = unfinished(targets, suite.contenders, done)
    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder, f"part-{gpu}.json") for gpu in range(options.gpus)]
        runs = [
            start(options, targets[gpu :: options.gpus], part, done, gpu)
            for gpu, part in enumerate(parts)
            if targets[gpu :: options.gpus]
        ]
        for run in runs:
            run.wait()
        merge(parts, options.results)
    left = unfinished(targets, suite.contenders, Benchmark.from_json(options.results.read_bytes()))
    print(f"{len(left)} targets are left to run" + (": run this again" if left else ""))


def unfinished(targets: list[str], contenders: tuple[str, ...], done: Benchmark | None) -> list[str]:
    """Return the targets that lack a row of some contender."""
    have = {(row.workload.target, row.contender) for row in done.rows} if done else set()
    return [target for target in targets if any((target, name) not in have for name in contenders)]


def start(
    options: argparse.Namespace, targets: list[str], part: Path, done: Benchmark | None, gpu: int
) -> subprocess.Popen[bytes]:
    """Start one benchmark on one GPU, going on with the rows that there are of its targets."""
    if done:
        part.write_text(replace(done, rows=tuple(r for r in done.rows if r.workload.target in targets)).to_json())
    command = [sys.executable, "-m", "torchwise.cli", "bench", *targets, "--suite", str(options.suite)]
    command += ["--resume", str(part), "--budget", options.budget, *options.options]
    environment = os.environ if options.gpus == 1 else {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    return subprocess.Popen(command, env=environment)


def merge(parts: list[Path], results: Path) -> None:
    """Add the rows of every part to the results, keeping what was there."""
    found = [Benchmark.from_json(part.read_bytes()) for part in parts if part.exists()]
    if results.exists():
        found.insert(0, Benchmark.from_json(results.read_bytes()))
    rows = {row.key: row for benchmark in found for row in benchmark.rows}
    merged = replace(found[0], rows=tuple(rows.values()))
    beside = results.with_suffix(".new")
    beside.write_text(merged.to_json())
    beside.replace(results)


if __name__ == "__main__":
    main()
