"""How often the check of a lock on another PyTorch is wrong: false alarms, and planted regressions that it misses.

    python benchmarks/upgrade_alarms.py --out upgrade-alarms.jsonl [--runs 20] [--planted 5] [--slower 1.1]

A program that takes 4 ms a call is locked. Then it is checked against the very same interpreter, which must raise no
alarm, and against one in which the program is slower, which must. A result that the machine leaves open counts as
neither. A run takes some 40 s on two quiet cores, so all of them 20 minutes. Each one is appended to the file as it
ends: after an interruption the same command goes on where it was. The last lines are the counts, and the exit code is 1
after a false alarm, or if no planted regression was found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

SLOWER = "TORCHWISE_BENCHMARK_SLOWER"
PROGRAM = f"""
import os, time, torch

def model(x):
    end = time.perf_counter() + 0.004 * float(os.environ.get("{SLOWER}", "1"))
    while time.perf_counter() < end:
        x = x * 0.5 + 1.0
    return x * 0.0 + 1.0

def make():
    return model, (torch.ones(8),)
"""
TARGET = "program.py:make"
GOOD, OPEN, ALARM = ("good", "faster"), ("inconclusive",), ("slower", "wrong", "lost", "stale")


def torchwise(folder: Path, *words: str) -> int:
    """Run a command of Torchwise in a folder, and return its exit code."""
    return subprocess.run([sys.executable, "-m", "torchwise.cli", *words], cwd=folder, check=False).returncode


def prepare(folder: Path) -> None:
    """Lock the program, unless an earlier run did."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "torchwise.lock").exists():
        return
    (folder / "program.py").write_text(PROGRAM)
    store = ("--store", str(folder / "studies.db"))
    # With so few calls eager stays, which is timed in the check like any plan.
    if torchwise(folder, "tune", TARGET, "--device", "cpu", "--effort", "quick", "--calls", "10", *store):
        raise SystemExit("the program could not be tuned: is the machine idle?")
    if torchwise(folder, "lock", TARGET, *store):
        raise SystemExit("the decision could not be locked: is the machine idle?")


def check_once(folder: Path, factor: float, effort: str) -> dict[str, object]:
    """Check the lock against an interpreter in which the program takes so many times as long."""
    python = folder / f"python-{factor:g}"
    python.write_text(f'#!/bin/sh\n{SLOWER}={factor} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    begun = time.monotonic()
    result = folder / "check.json"
    result.unlink(missing_ok=True)
    code = torchwise(folder, "check", "--against-python", str(python), "--effort", effort, "--json", str(result))
    row = json.loads(result.read_text())["rows"][0]
    seconds = round(time.monotonic() - begun, 1)
    load = os.getloadavg()[0]
    return {
        "factor": factor,
        "state": row["state"],
        "exit": code,
        "time": row["time"],
        "seconds": seconds,
        "load": load,
    }


def count(results: list[dict[str, object]], factor: float) -> Counter[str]:
    """Count the results of one factor by their state."""
    return Counter(str(one["state"]) for one in results if one["factor"] == factor)


def summarize(results: list[dict[str, object]], slower: float) -> int:
    """Print the counts, and return the exit code."""
    same, planted = count(results, 1.0), count(results, slower)
    alarms = sum(number for state, number in same.items() if state in ALARM)
    unclear = sum(number for state, number in same.items() if state in OPEN)
    print(f"the same interpreter: {dict(same)}: {alarms} false alarms in {same.total()} runs, {unclear} left open")
    missed = sum(planted[state] for state in GOOD)
    print(
        f"{slower} times as slow: {dict(planted)}: found in {planted['slower']} of {planted.total()} runs, {missed} "
        "taken for good"
    )
    longest, load = (max((float(str(one[key])) for one in results), default=0.0) for key in ("seconds", "load"))
    print(f"load of the machine up to {load:.1f}, a run up to {longest:.0f} s")
    return int(alarms > 0 or missed > 0 or not planted["slower"])


def main() -> None:
    """Lock the program, and check it both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("upgrade-alarms.jsonl"), help="results, a line for each run")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--planted", type=int, default=5, help="runs against the slower program")
    parser.add_argument("--slower", type=float, default=1.1, help="time of a call there over that here")
    parser.add_argument("--effort", default="quick")
    asked = parser.parse_args()
    folder = asked.out.resolve().with_suffix(".work")
    results = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    # In turn, so that a run that is cut off has counts of both.
    orders = [1.0] * asked.runs
    step = max(asked.runs // max(asked.planted, 1), 1)
    for number in range(asked.planted):
        orders.insert(min(number * (step + 1) + 1, len(orders)), asked.slower)
    left = Counter(orders) - Counter(float(str(one["factor"])) for one in results)
    try:
        prepare(folder)
        for factor in orders:
            if left[factor] <= 0:
                continue
            left[factor] -= 1
            results.append(check_once(folder, factor, asked.effort))
            with asked.out.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
            print(results[-1], flush=True)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on: {asked.out} has {len(results)} runs")
    sys.exit(summarize(results, asked.slower))


if __name__ == "__main__":
    main()
