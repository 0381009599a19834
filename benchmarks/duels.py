"""How well do trials distinguish two plans, and how well does a duel?

Both are repeated several times, from scratch.

A trial compares its plan with eager in its own process. Without a duel, a search must go by the ratio of two such
speed-ups. A duel times the two plans against each other in one process. The output shows how either ratio varies
between searches, as a relative standard deviation. A good method has a small one.

Run it: python benchmarks/duels.py zoo:ivhl.field_superposition@large --plan JSON --plan JSON --runs 8 --out .
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
import tempfile
from pathlib import Path

import torchwise
from torchwise import environment
from torchwise.plan import Plan
from torchwise.records.trial import relative_speeds

CALLS = 10**12
"""Expected calls, so many that any duel pays back."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--plan", action="append", required=True, help="a plan as JSON; give two of similar speed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default="inference")
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--label", help="hardware, for the names of the files; the device where left out")
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    plans = [Plan.from_json(text) for text in options.plan]
    if len(plans) != 2:
        parser.error(f"{len(plans)} plans are given, but must be two, which are compared")
    runs: list[dict[str, float | None]] = []
    for number in range(options.runs):
        runs.append(run(options, *plans))
        print(number, json.dumps(runs[-1]), flush=True)
        text = report(options, plans, runs)  # after every run, so that an interrupted benchmark keeps its results
    print(text)


def run(options: argparse.Namespace, first: Plan, second: Plan) -> dict[str, float | None]:
    """Search once, in an empty store, and return the second plan's speed over the first's, by trials and by duel."""
    with tempfile.TemporaryDirectory() as folder:
        study = torchwise.tune(
            options.target,
            device=options.device,
            mode=options.mode,
            calls=CALLS,
            effort=options.effort,
            plans=[first, second],
            store=f"{folder}/store.db",
            progress=False,
        )
    speeds = {trial.plan: trial.measurement.speedup.mid for trial in study.trials if trial.measurement}
    duel = relative_speeds(study.trials, second).get(first)
    both = speeds[second] / speeds[first] if len(speeds) == 2 else None
    return {"trials": both, "duel": duel.mid if duel else None}


def report(options: argparse.Namespace, plans: list[Plan], runs: list[dict[str, float | None]]) -> str:
    here = environment.detect(options.device)
    machine = f"{here.gpu or here.cpu}, {here.cpus} CPUs, torch {here.torch}"
    lines = [
        f"{options.target} on {machine}, {datetime.date.today()}, effort {options.effort}",
        "",
        f"Speed of `{plans[1]}` over that of `{plans[0]}`:",
        "",
        "| search | by trials | by duel |",
        "|---|---|---|",
    ]
    lines += [
        f"| {number} | {format_ratio(run['trials'])} | {format_ratio(run['duel'])} |" for number, run in enumerate(runs)
    ]
    lines += ["", f"Relative standard deviation: {spread(runs, 'trials')} by trials, {spread(runs, 'duel')} by duel."]
    text = "\n".join(lines) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    name = re.sub("[:@,/]", "-", options.target)
    stem = f"{datetime.date.today()}-{options.label or options.device}-duels-{name}"
    Path(options.out, f"{stem}.md").write_text(text)
    Path(options.out, f"{stem}.json").write_text(json.dumps({"plans": options.plan, "runs": runs}, indent=1))
    return text


def format_ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3f}"


def spread(runs: list[dict[str, float | None]], kind: str) -> str:
    known = [ratio for run in runs if (ratio := run[kind]) is not None]
    return f"{statistics.stdev(known) / statistics.mean(known):.1%}" if len(known) > 1 else "–"


if __name__ == "__main__":
    main()
