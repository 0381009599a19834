"""Do runs agree? Tune one target ten times from nothing and compare the decisions.

Two runs agree when they decide for the same plan, or for plans whose speed-up intervals overlap.

Run it: python benchmarks/agreement.py zoo:tutorial.fusion_demo --device cpu --runs 10 --out .
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--calls", default="100000")
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--label", help="hardware, for the names of the files; the device where left out")
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    runs = []
    for number in range(options.runs):
        runs.append(tune(options))
        print(number, json.dumps(runs[-1]), flush=True)
    report(runs, options)


def tune(options: argparse.Namespace) -> dict[str, object]:
    """Tune once with an empty store; return what was decided."""
    from torchwise.plan import Plan
    from torchwise.records import codec

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "study.json")
        command = ["tune", options.target, "--device", options.device, "--calls", options.calls]
        command += ["--effort", options.effort, "--store", f"{folder}/store.db", "--json", str(file)]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "torchwise.cli", *command], check=True, capture_output=True)
        seconds = time.perf_counter() - start
        study = json.loads(file.read_text())
    decision = study["decision"]
    return {
        "plan": str(codec.from_builtins(decision["plan"], Plan)),
        "speedup": decision["speedup"] or {"low": 1.0, "mid": 1.0, "high": 1.0},
        "seconds": round(seconds, 1),
        "environment": study["environment"],
    }


def agree(one: dict[str, object], other: dict[str, object]) -> bool:
    first, second = one["speedup"], other["speedup"]
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    return one["plan"] == other["plan"] or (first["low"] <= second["high"] and second["low"] <= first["high"])


def report(runs: list[dict[str, object]], options: argparse.Namespace) -> None:
    pairs = list(itertools.combinations(runs, 2))
    agreeing = sum(agree(one, other) for one, other in pairs)
    environment = runs[0]["environment"]
    assert isinstance(environment, dict)
    machine = f"{environment['gpu'] or environment['cpu']}, {environment['cpus']} CPUs, torch {environment['torch']}"
    lines = [f"{options.target} on {machine}, {datetime.date.today()}, {options.calls} calls, {options.effort}", ""]
    lines += ["| run | plan | speed-up over eager | search s |", "|---|---|---|---|"]
    for number, run in enumerate(runs):
        speed = run["speedup"]
        assert isinstance(speed, dict)
        interval = f"{speed['mid']:.2f} [{speed['low']:.2f}, {speed['high']:.2f}]"
        lines.append(f"| {number} | {run['plan']} | {interval} | {run['seconds']} |")
    lines += ["", f"{agreeing} of {len(pairs)} pairs of runs agree."]
    text = "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    name = options.target.replace(":", "-").replace("@", "-")
    stem = f"{datetime.date.today()}-{options.label or options.device}-agreement-{name}"
    Path(options.out, f"{stem}.md").write_text(text)
    Path(options.out, f"{stem}.json").write_text(json.dumps(runs, indent=1))
    print(text)


if __name__ == "__main__":
    main()
