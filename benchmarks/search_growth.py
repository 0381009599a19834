"""Do searches take longer since there are more choices? Two checkouts search programs that newer choices are not for.

A choice is tried where a trait of the model asks for it. So a model without such traits should be searched as before,
with as many trials. Both checkouts search each program in turns, each time with an empty store and empty caches of
compiled code. Trials, and the seconds from the begin of a search to its decision, are those of `torchwise tune --json`.
Seconds are shown as the ratio of each pair, after over before.

Run it: git worktree add ../before REVISION; python benchmarks/search_growth.py ../before . --times 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torchwise.plan import Plan
from torchwise.plan.plan import SCHEMA

PROGRAMS = (
    *("zoo:tutorial.fusion_demo@small", "zoo:tutorial.elementwise_chain@small", "zoo:tutorial.branch@small"),
    *("zoo:energy_flow.storage@small", "zoo:ivhl.pachner_moves@small", "zoo:tutorial.break_print@small"),
)
"""Programs without products of large matrices, convolutions of whole images, attention and recurrent layers."""
LIMIT_S = 600


@dataclass(frozen=True, slots=True)
class Search:
    """One search.

    Attributes:
        trials: their number.
        seconds: of the whole search.
        decided: the plan.
    """

    trials: int
    seconds: float
    decided: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--programs", nargs="+", default=PROGRAMS, metavar="TARGET")
    parser.add_argument("--effort", default="standard", choices=("quick", "standard", "thorough"))
    parser.add_argument("--times", type=int, default=3, help="searches of each program in each checkout")
    options = parser.parse_args()
    print(f"effort {options.effort}; seconds of {options.times} pairs, and their ratios, after over before\n")
    print("| program | trials before | after | seconds before | after | ratio | plan before | after |")
    print("|---" * 8 + "|", flush=True)
    ratios = [ratio for name in options.programs for ratio in compare(name, options)]
    if ratios:
        print(f"\nMedian of {len(ratios)} pairs: {statistics.median(ratios):.2f}.")


def compare(name: str, options: argparse.Namespace) -> list[float]:
    """Search a program in both checkouts, print its line, and return the ratios of the seconds."""
    pairs = list[tuple[Search, Search]]()
    for turn in range(options.times):
        if turn % 2:  # the other one begins in every second turn
            after, before = (search(one, name, options.effort) for one in (options.after, options.before))
        else:
            before, after = (search(one, name, options.effort) for one in (options.before, options.after))
        pairs.append((before, after))
    sides = [*zip(*pairs, strict=True)]
    ratios = [b.seconds / a.seconds for a, b in pairs]
    cells = [
        *(show({one.trials for one in side}) for side in sides),
        *(f"{statistics.median(one.seconds for one in side):.1f}" for side in sides),
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        *(show({one.decided for one in side}) for side in sides),
    ]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return ratios


def show(found: set[int] | set[str]) -> str:
    """Return the values of several searches, each once."""
    return ", ".join(map(str, sorted(found)))


def search(checkout: Path, name: str, effort: str) -> Search:
    """Search in a process of its own, with the sources of a checkout.

    Raises:
        SystemExit: the search failed.
    """
    root = checkout.resolve()
    python = root / ".venv" / "bin" / "python"
    sources = [root / "src", root / "plugins" / "models" / "src"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "study.json")
        command = [str(python if python.exists() else sys.executable), "-m", "torchwise.cli", "tune", name]
        command += ["--device", "cpu", "--effort", effort, "--calls", "10000000", "--fresh"]
        command += ["--store", str(Path(folder, "study.db")), "--json", str(file)]
        path = os.pathsep.join([*map(str, sources), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "code"))}
        ran = subprocess.run(
            command, check=False, env=environment, cwd=root, capture_output=True, text=True, timeout=LIMIT_S
        )
        if not file.exists():
            last = (ran.stderr.strip().splitlines() or ["no error"])[-1]
            raise SystemExit(f"{checkout} did not search {name}: {last}")
        study = json.loads(file.read_text())
    decided = study["decision"]["plan"]
    plan = Plan.from_dict({**decided, "schema": SCHEMA, "options": dict(decided["options"])})
    return Search(len(study["trials"]), study["seconds"], str(plan))


if __name__ == "__main__":
    main()
