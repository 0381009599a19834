"""How often the check of a lock on another PyTorch is wrong: false alarms, and planted regressions that it misses.

    python benchmarks/upgrade_alarms.py [--runs 20] [--slower 1.1] [--effort quick]

A program that takes 10 ms a call is locked. Then it is checked against the very same interpreter, which must raise no
alarm, and against one in which the program is slower, which must. It takes some minutes for each ten runs, on a machine
that is otherwise idle. The last lines are the counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

SLOWER = "TORCHWISE_BENCHMARK_SLOWER"
PROGRAM = f"""
import os, time, torch

def model(x):
    end = time.perf_counter() + 0.010 * float(os.environ.get("{SLOWER}", "1"))
    while time.perf_counter() < end:
        x = x * 0.5 + 1.0
    return x * 0.0 + 1.0

def make():
    return model, (torch.ones(8),)
"""


def torchwise(folder: Path, *words: str) -> int:
    """Run a command of Torchwise in a folder, and return its exit code."""
    return subprocess.run([sys.executable, "-m", "torchwise.cli", *words], cwd=folder, check=False).returncode


def count_states(folder: Path, python: str, runs: int, effort: str) -> Counter[str]:
    """Check the lock of a folder against an interpreter, and count the results."""
    found: Counter[str] = Counter()
    for _ in range(runs):
        torchwise(folder, "check", "--against-python", python, "--effort", effort, "--json", "check.json")
        found.update(row["state"] for row in json.loads((folder / "check.json").read_text())["rows"])
    return found


def main() -> None:
    """Lock the program, and check it both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--slower", type=float, default=1.1, help="time of a call there over that here")
    parser.add_argument("--effort", default="quick")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        store = ("--store", str(folder / "studies.db"))
        # With so few calls eager stays, which is timed in the check like any plan.
        if torchwise(
            folder, "tune", "program.py:make", "--device", "cpu", "--effort", "quick", "--calls", "10", *store
        ):
            raise SystemExit("the program could not be tuned: is the machine idle?")
        if torchwise(folder, "lock", "program.py:make", *store):
            raise SystemExit("the decision could not be locked: is the machine idle?")
        slower = folder / "python"
        slower.write_text(f'#!/bin/sh\n{SLOWER}={asked.slower} exec {sys.executable} "$@"\n')
        slower.chmod(0o755)
        same = count_states(folder, sys.executable, asked.runs, asked.effort)
        planted = count_states(folder, str(slower), asked.runs, asked.effort)
    alarms = sum(count for state, count in same.items() if state not in ("good", "inconclusive"))
    print(f"the same interpreter: {dict(same)}: {alarms} false alarms in {asked.runs} runs")
    print(f"{asked.slower} times as slow: {dict(planted)}: found in {planted['slower']} of {asked.runs} runs")


if __name__ == "__main__":
    main()
