"""Does the order that is learned from past studies find the best plan sooner than the order by compile time?

Each program is searched twice, by turns in either order, with fresh stores: with the shipped past studies and without.
The best plan is the quickest verified one of both searches. Told are the seconds from the command's start, profiling
included, after which each search had a plan within 5 % of it, and the first one that was faster than eager for sure.
The ratio of both times has a 95 % bootstrap interval over the programs.

The programs are those of `benchmarks/served_models.py`, of which the shipped studies know nothing. A run that is cut
off continues with the same command.

    python benchmarks/trial_order.py --out trial-order.json     # some 40 minutes on two cores
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from served_models import FILE, HF

import torchwise
from torchwise import environment
from torchwise.records import format as show
from torchwise.records.statistics import median_interval
from torchwise.study.gain_model import read_shipped

PROGRAMS = ("convnet", "mlp", "lstm", "recommender", "mobilenet_v2", "sentence_encoder", "t5_encoder", "gpt2_decode")
ORDERS = ("learned", "by compile time")
NEAR = 0.95
CALLS = 10**9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of each search (default 90)")
    parser.add_argument("--effort", default="standard", choices=("quick", "standard", "thorough"))
    parser.add_argument("--out", type=Path, required=True, help="the results, a .json file")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for place, program in enumerate(options.programs):
        searches = found.setdefault(program, {})
        for order in ORDERS if place % 2 else ORDERS[::-1]:
            if order not in searches:
                searches[order] = search(HF.get(program, f"{FILE}:{program}"), order, options)
                options.out.write_text(json.dumps(found, indent=1) + "\n")
    lines = [describe_machine(options), *tabulate(found)]
    options.out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def describe_machine(options: argparse.Namespace) -> str:
    here = environment.detect(options.device)
    hardware = here.gpu if options.device == "cuda" else f"{here.cpu}, {os.cpu_count()} CPUs"
    return (
        f"{hardware}, torch {here.torch}, effort {options.effort}, {options.budget:g} s a search, "
        f"load {os.getloadavg()[0]:.1f}\n"
    )


def search(target: str, order: str, options: argparse.Namespace) -> dict[str, Any]:
    """Search once, and return when each verified plan was there, with its speed-up: [seconds, speed-up, is sure]."""
    given: dict[str, Any] = {"device": options.device, "effort": options.effort, "budget": options.budget}
    with tempfile.TemporaryDirectory() as folder, patch_order(order):
        began = time.time()
        study = torchwise.tune(target, calls=CALLS, store=str(Path(folder) / "store.db"), **given)
        return {"plan": str(study.decision.plan), "seconds": time.time() - began, "found": list_found(study, began)}


def patch_order(order: str) -> Any:
    """Return a context in which searches know the shipped studies, or none."""
    known = {"learned": lambda *_: read_shipped(), "by compile time": lambda *_: ()}
    return patch("torchwise.study.search_loop.read_past", known[order])


def list_found(study: torchwise.Study, began: float) -> list[list[float]]:
    """List the verified plans by the time at which their trials ended, eager first."""
    rows = [[0.0, 1.0, 0.0]]
    for trial in study.trials:
        if trial.is_verified and (speedup := trial.speedup):
            rows.append([trial.started_at + trial.seconds - began, speedup.mid, float(speedup.low > 1)])
    return rows


def tabulate(found: dict[str, Any]) -> list[str]:
    """Return a table with the seconds to a plan near the best, and to the first that is surely faster than eager."""
    lines = ["| program | best | " + " | ".join(f"{order}: near it, first faster, plan" for order in ORDERS) + " |"]
    lines.append("|---|---|---|---|")
    ratios: dict[str, list[float]] = {"a plan near the best": [], "the first faster plan": []}
    for program, searches in found.items():
        if set(searches) != set(ORDERS):
            continue
        best = max(row[1] for search in searches.values() for row in search["found"])
        near, first = (
            {order: find_first(searches[order]["found"], test) for order in ORDERS}
            for test in (lambda row: row[1] >= NEAR * best, lambda row: row[2] > 0)  # noqa: B023 - used at once
        )
        cells = [f"{tell(near[o])}, {tell(first[o])}, {searches[o]['plan']}" for o in ORDERS]
        lines.append(f"| {program} | {best:.2f}× | {' | '.join(cells)} |")
        for name, seconds in zip(ratios, (near, first), strict=True):
            # A search that did not find it in its time needs at least that.
            own, other = (searches[o]["seconds"] if math.isinf(seconds[o]) else seconds[o] for o in ORDERS)
            if own and other:
                ratios[name].append(other / own)
    told = [f"- {name}: {show.speedup(median_interval(values))} sooner" for name, values in ratios.items() if values]
    return [*lines, "", *told]


def find_first(rows: list[list[float]], test: Any) -> float:
    return min((row[0] for row in rows if test(row)), default=math.inf)


def tell(seconds: float) -> str:
    return "never" if math.isinf(seconds) else show.seconds(seconds)


if __name__ == "__main__":
    main()
