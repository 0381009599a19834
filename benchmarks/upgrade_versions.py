"""Lock three programs on one PyTorch, and check them and public functions on the next ones.

    python benchmarks/upgrade_versions.py --to 2.13.0 --to 2.15.0 [--out upgrade.json] [--plant 1.1]

It runs with the PyTorch to upgrade from. Environments with the others are made in the user's cache. Each program is
tuned with a compiled plan, locked, and checked. The exit code is 1 if something is wrong, lost or not checked with
another PyTorch. A plan that becomes slower there is told and is no error: that is what the check is for. With `--plant`
a program is checked once more with this PyTorch, in an interpreter where each call takes so many times as long. It must
be found slower, in one of three checks if the machine is too busy for the first. Other results may stay open.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "upgrades" / "programs.py"
LOCKED = ("make_layers", "make_convolutions", "make_diffusion")
PUBLIC = ("make_softmax", "make_solve", "make_attention")
PLAN = '{"schema":"torchwise.plan/1","backend":"inductor"}'
FAULTS = ("wrong", "lost", "stale", "not checked", "graph breaks")
TRIES = 3
SLOWED = """
import os, time
import programs

def slow_down(make):
    def made(seed=0):
        call, inputs = make(seed)
        share = float(os.environ.get("TORCHWISE_BENCHMARK_SLOWER", "1")) - 1

        def slowed(*given):
            begun = time.perf_counter()
            found = call(*given)
            end = time.perf_counter() + share * (time.perf_counter() - begun)
            while time.perf_counter() < end:
                pass
            return found

        return slowed, inputs

    return made

make = slow_down(programs.make_diffusion)
"""


def torchwise(folder: Path, *words: str) -> int:
    """Run a command of Torchwise in a folder, and return its exit code."""
    print("$ torchwise", *words, flush=True)
    return subprocess.run([sys.executable, "-m", "torchwise.cli", *words], cwd=folder, check=False).returncode


def lock(folder: Path) -> None:
    """Tune each program with one plan, and lock it. Where it does not surely pay, eager is locked."""
    store = ("--store", str(folder / "studies.db"))
    for name in LOCKED:
        words = ("tune", f"programs.py:{name}", "--device", "cpu", "--effort", "quick", *store)
        if not torchwise(folder, *words, "--plan", PLAN, "--calls", "1000000"):
            continue
        print(f"{name}: the plan does not surely pay, so eager is locked")  # in ten calls no compilation pays
        if torchwise(folder, *words, "--calls", "10"):
            raise SystemExit(f"{name} could not be tuned")
    if torchwise(folder, "lock", *(f"programs.py:{name}" for name in LOCKED), *store):
        raise SystemExit("the decisions could not be locked: is the machine idle?")


def check(folder: Path, *words: str, effort: str = "quick") -> list[dict[str, str]]:
    """Check, and return the rows, or none if the check wrote no result."""
    result = folder / "check.json"
    result.unlink(missing_ok=True)  # the rows of an earlier check must not stand for those of this one
    torchwise(folder, "check", *words, "--effort", effort, "--json", result.name)
    rows: list[dict[str, str]] = json.loads(result.read_text())["rows"] if result.exists() else []
    return rows


def plant(folder: Path, factor: float) -> list[dict[str, str]]:
    """Check a program with this PyTorch, in an interpreter where it takes so many times as long."""
    (folder / "slowed.py").write_text(SLOWED)
    python = folder / "slower-python"
    python.write_text(f'#!/bin/sh\nTORCHWISE_BENCHMARK_SLOWER={factor} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / "none").mkdir(exist_ok=True)
    words = ("--lock", "none/torchwise.lock", "--against-python", str(python), "--public", "slowed.py:make")
    rows: list[dict[str, str]] = []
    for _ in range(TRIES):  # a busy machine leaves the result open
        rows = check(folder, *words, effort="standard")
        if not rows or any(row["state"] != "inconclusive" for row in rows):
            break
    return rows


def main() -> None:
    """Lock here, and check on each other PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", action="append", required=True, help="another version of PyTorch; several are possible")
    parser.add_argument("--out", type=Path, help="write all rows as JSON")
    parser.add_argument(
        "--plant", type=float, default=0.0, help="also check a program that takes so many times as long"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torchwise-upgrades-") as name:
        folder = Path(name)
        (folder / "programs.py").write_text(PROGRAMS.read_text())
        lock(folder)
        others = [word for version in asked.to for word in ("--against-torch", version)]
        public = [word for one in PUBLIC for word in ("--public", f"programs.py:{one}")]
        rows = check(folder, *others, *public)
        planted = plant(folder, asked.plant) if asked.plant else []
    if asked.out:
        asked.out.write_text(json.dumps({"rows": rows, "planted": planted}, indent=1) + "\n")
    print(f"states: {dict(Counter(row['state'] for row in rows))}")
    expected = (len(LOCKED) + len(PUBLIC)) * len(asked.to)
    bad = [f"{row['target']} with {row['against']}: {row['detail']}" for row in rows if row["state"] in FAULTS]
    bad += [f"{len(rows)} rows of {expected}"] if len(rows) != expected else []
    bad += [f"planted, and not found: {row['detail']}" for row in planted if row["state"] != "slower"]
    bad += ["planted, and not checked"] if asked.plant and not planted else []
    print(f"planted {asked.plant:g}: {[row['state'] for row in planted]}" if planted else "nothing planted")
    for line in bad:
        print("fault:", line)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
