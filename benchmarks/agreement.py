"""Do runs agree? Tune one target ten times from nothing and compare the decisions.

Two runs agree when they decide for the same plan, or for plans whose speed-up intervals (95 %) overlap. Beside it is
what a run decides by: the cost of compiling and of all calls together, as a share of what eager would take. Where
compiling barely pays over the calls asked for, two plans may cost the same and differ in speed.

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
from dataclasses import asdict
from pathlib import Path

from torchwise.records import Economics, Interval, Study, codec
from torchwise.records.study import study_from_dict


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
        text = report(runs, options)  # after every run, so that a run that is cut off keeps what it has
    print(text)


def tune(options: argparse.Namespace) -> dict[str, object]:
    """Tune once with an empty store; return what was decided."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "study.json")
        command = ["tune", options.target, "--device", options.device, "--calls", options.calls]
        command += ["--effort", options.effort, "--store", f"{folder}/store.db", "--json", str(file)]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "torchwise.cli", *command], check=True, capture_output=True)
        seconds = time.perf_counter() - start
        study = json.loads(file.read_text())
    return summary(study_from_dict(study)) | {"seconds": round(seconds, 1)}


def summary(study: Study) -> dict[str, object]:
    """Return what was decided, its cost, and every candidate with its speed-up."""
    decision = study.decision
    assert decision is not None
    economics = Economics(decision.baseline_s, study.workload.calls, study.workload.restarts)
    costs = {str(t.plan): economics.cost(t) for t in study.trials if t.is_proven}
    cost = costs.get(str(decision.plan), Interval(*[economics.baseline_cost] * 3))
    return {
        "plan": str(decision.plan),
        "reason": decision.reason,
        "speedup": asdict(decision.speedup or Interval(1.0, 1.0, 1.0)),
        "cost": {name: value / economics.baseline_cost for name, value in asdict(cost).items()},
        "tried": {str(t.plan): f"{t.measurement.speedup if t.measurement else ''} {t.reason}" for t in study.trials},
        "environment": codec.to_builtins(study.environment),
    }


def agree(one: dict[str, object], other: dict[str, object]) -> bool:
    first, second = one["speedup"], other["speedup"]
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    return one["plan"] == other["plan"] or (first["low"] <= second["high"] and second["low"] <= first["high"])


def report(runs: list[dict[str, object]], options: argparse.Namespace) -> str:
    pairs = list(itertools.combinations(runs, 2))
    agreeing = sum(agree(one, other) for one, other in pairs)
    environment = runs[0]["environment"]
    assert isinstance(environment, dict)
    machine = f"{environment['gpu'] or environment['cpu']}, {environment['cpus']} CPUs, torch {environment['torch']}"
    lines = [f"{options.target} on {machine}, {datetime.date.today()}, {options.calls} calls, {options.effort}", ""]
    lines += ["| run | plan | speed-up over eager | cost, of eager's | search s |", "|---|---|---|---|---|"]
    for number, run in enumerate(runs):
        cells = [f"{v['mid']:.3f} [{v['low']:.3f}, {v['high']:.3f}]" for v in (run["speedup"], run["cost"])]  # type: ignore[index]
        lines.append(f"| {number} | {run['plan']} | {' | '.join(cells)} | {run['seconds']} |")
    lines += ["", f"{agreeing} of {len(pairs)} pairs of runs agree."]
    text = "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    name = options.target.replace(":", "-").replace("@", "-")
    stem = f"{datetime.date.today()}-{options.label or options.device}-agreement-{name}"
    Path(options.out, f"{stem}.md").write_text(text)
    Path(options.out, f"{stem}.json").write_text(json.dumps(runs, indent=1))
    return text


if __name__ == "__main__":
    main()
