"""The host cost of Torchwise: bytecodes of a call on each path through it, of its import and of its help.

Timings say little on a busy machine: they would not show a change that makes each call a little slower. The bytecodes
that Python executes are the same on every run. They are compared with the counts in `host_cost.json`, which hold for
one version of Python and of the packages involved.

Run it: python benchmarks/host_cost.py [--check | --renew]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
BASELINES = HERE / "host_cost.json"
LIMIT = 1.02
"""Maximum ratio of a count to its baseline. Counts are exact, so this only leaves room for small changes."""

KEPT = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
"""Environment variables that a count keeps, as Python may need them to start."""

Counts = dict[str, int]
Baselines = dict[str, Counts]
"""Counts by versions, such as "python 3.11, torch 2.13"."""


@dataclass(frozen=True)
class Cost:
    """A count and its baseline, which is None if there is none for these versions."""

    name: str
    count: int
    versions: str
    baseline: int | None

    @property
    def limit(self) -> int | None:
        return None if self.baseline is None else int(self.baseline * LIMIT)

    @property
    def fails(self) -> bool:
        return self.limit is not None and self.count > self.limit

    @property
    def note(self) -> str | None:
        """A remark that is no failure, or None."""
        if self.baseline is None:
            return f"{self.name} was not checked: there is no baseline for {self.versions} (--renew adds it)"
        if self.count * LIMIT < self.baseline:
            return f"{self.name} takes {self.count:,} bytecodes, fewer than {self.baseline:,}: --renew keeps the gain"
        return None

    def __str__(self) -> str:
        baseline, limit = ("-" if value is None else f"{value:,}" for value in (self.baseline, self.limit))
        return f"{self.name:20} {self.count:>10,} {baseline:>10} {limit:>10}  {self.versions}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="fail where a count is over its limit")
    mode.add_argument("--renew", action="store_true", help=f"write the counts to {BASELINES.name}")
    options = parser.parse_args()
    counted, baselines = count_all(), json.loads(BASELINES.read_text())
    costs = list(compare(counted, baselines))
    print(f"{'bytecodes':20} {'now':>10} {'baseline':>10} {'limit':>10}")
    print(*costs, sep="\n")
    if options.renew:
        BASELINES.write_text(json.dumps(baselines | counted, indent=2, sort_keys=True) + "\n")
        return 0
    for note in filter(None, (cost.note for cost in costs)):
        print(f"note: {note}")
    failed = [cost for cost in costs if options.check and cost.fails]
    for cost in failed:
        print(explain(cost), file=sys.stderr)
    return int(bool(failed))


def compare(counted: Baselines, baselines: Baselines) -> Iterator[Cost]:
    for versions, counts in counted.items():
        for name, count in counts.items():
            yield Cost(name, count, versions, baselines.get(versions, {}).get(name))


def explain(cost: Cost) -> str:
    return (
        f"host cost: {cost.name} takes {cost.count:,} bytecodes, but the baseline is {cost.baseline:,} and the limit "
        f"{cost.limit:,} ({cost.versions}). Make it cheaper, or accept it: python benchmarks/host_cost.py --renew"
    )


def count_all() -> Baselines:
    commands = {name: int(run_alone("bytecodes.py", name)) for name in ("import torchwise", "torchwise --help")}
    calls = json.loads(run_alone("host_paths.py"))
    return {describe_versions("rich", "typer"): commands, describe_versions("torch"): calls}


def describe_versions(*packages: str) -> str:
    """Return the versions, to the second number, of Python and of the packages that counts depend on."""
    found = {"python": sys.version.split()[0], **{package: version(package) for package in packages}}
    return ", ".join(f"{name} {'.'.join(number.split('.')[:2])}" for name, number in found.items())


def run_alone(*command: str) -> str:
    """Run a script of this folder in an isolated process, and return its output.

    It runs without `site`, which would import packages of the current environment.
    """
    paths = sysconfig.get_paths()
    with tempfile.TemporaryDirectory() as cache:
        environment = {name: value for name in KEPT if (value := os.environ.get(name)) is not None} | {
            "HOME": cache,
            "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), paths["purelib"], paths["platlib"]]),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TORCHWISE_NATIVE": "0",  # a count is of the checks in Python, whether or not others are compiled
            "COLUMNS": "80",
            "TERM": "dumb",
        }
        done = subprocess.run(
            [sys.executable, "-S", HERE / command[0], *command[1:]],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=280,
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
