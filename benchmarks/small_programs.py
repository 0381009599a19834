"""Small programs at batch 1 and 64: row programs beside eager, Inductor in all modes, ONNX Runtime and OpenVINO.

Each plan is verified, and timed against eager in alternation in a process of its own, as in a search. A row of the
table has the speed-ups over eager, and the best other way's time over that of row programs, with 95 % intervals. The
last line is the geometric mean of those. Results go to a file after each program. The same command continues a run that
was cut off, until --budget is spent:

    python benchmarks/small_programs.py --label epyc-2cpu --budget 1200             # some 40 s a row, 28 rows
    python benchmarks/small_programs.py --label epyc-2cpu --budget 1200 --held-out  # some 40 s a row, 10 rows
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import small_targets

import torchwise
from torchwise import environment
from torchwise.plan import Plan
from torchwise.records import format as show
from torchwise.records.candidates import rows
from torchwise.records.statistics import Interval, ratio_of

OWN = Plan(backend="row_programs")
INDUCTOR = Plan(backend="inductor")
OTHERS = {
    "inductor": INDUCTOR,
    "inductor, freezing": INDUCTOR.with_choice("options", ("freezing", True)),
    "inductor, max-autotune": INDUCTOR.with_choice("mode", "max-autotune-no-cudagraphs"),
    "onnxruntime": Plan(backend="onnxruntime"),
    "openvino": Plan(backend="openvino"),
}
TARGETS = Path(small_targets.__file__)
MIN_RATIO = 0.98
"""Row programs count as behind below this ratio to the best other way."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="such as mlp (default: all)")
    parser.add_argument("--held-out", action="store_true", help="the five programs that served no development")
    parser.add_argument("--budget", type=float, default=1200.0, help="seconds after which no further row starts")
    parser.add_argument("--iterations", type=int, default=60, help="timings of each plan and of eager")
    parser.add_argument("--label", required=True, help="hardware, for the name of the file, such as xeon-2cpu")
    parser.add_argument("--date", default=str(datetime.date.today()), help="day in the name of the file")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    known = small_targets.HELD_OUT if options.held_out else {**small_targets.PROGRAMS, **small_targets.ZOO}
    names = options.programs or list(known)
    if wrong := [name for name in names if name not in known]:
        parser.error(f"programs has {wrong[0]!r}, but there are {', '.join(known)}")
    file = options.out / f"{options.date}-{options.label}-small-programs{'-held-out' * options.held_out}.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    end = time.monotonic() + options.budget
    for target in (f"{name}_{batch}" for name in names for batch in small_targets.BATCHES):
        if target not in found and time.monotonic() < end:
            found[target] = measure(target, options.iterations)
            file.write_text(json.dumps(found, indent=1) + "\n")
            print(write_row(target, found[target]), flush=True)
    lines = summarize(found)
    file.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def measure(target: str, iterations: int) -> dict[str, Any]:
    """Return the speed-up of each plan of a program over eager, or why it has none."""
    with tempfile.TemporaryDirectory() as folder:
        study = torchwise.tune(
            f"{TARGETS}:{target}",
            plans=(OWN, *OTHERS.values()),
            device="cpu",
            calls=10_000_000,
            iterations=iterations,
            store=str(Path(folder, "study.db")),
            progress=False,
        ).record
    table: dict[str, Any] = {}
    by_plan = {row.plan: row for row in rows(study)}
    for name, plan in {"row programs": OWN, **OTHERS}.items():
        table[name] = read_row(by_plan.get(plan))
    eager = next((row.time for row in by_plan.values() if row.standing == "baseline" and row.time), None)
    return {"eager_s": eager.mid if eager else None, "plans": table}


def read_row(row: Any) -> dict[str, Any]:
    """Return the speed-up of a plan's row over eager, or why it has none."""
    if row is None or row.verdict != "passed" or row.speedup is None:
        return {"why": row.why if row is not None else "not tried"}
    return {"speedup": [row.speedup.low, row.speedup.mid, row.speedup.high], "cold_s": row.cold_s}


def interval(low: float, mid: float, high: float) -> Interval:
    """Return an interval of three numbers in order."""
    return Interval(low=low, mid=mid, high=high)


def over_best(row: dict[str, Any]) -> tuple[Interval, str] | None:
    """Return the speed of row programs over that of the best other way, eager included, and the name of that."""
    plans = {name: interval(*found["speedup"]) for name, found in row["plans"].items() if "speedup" in found}
    if (own := plans.pop("row programs", None)) is None:
        return None
    plans["eager"] = interval(1.0, 1.0, 1.0)
    best = max(plans, key=lambda name: plans[name].mid)
    return ratio_of(own, plans[best]), best


def write_row(target: str, row: dict[str, Any]) -> str:
    """Return the line of a program in the table."""
    cells = [
        show.speedup(interval(*found["speedup"])) if "speedup" in found else "-" for found in row["plans"].values()
    ]
    ratio = over_best(row)
    last = f"{show.speedup(ratio[0])} ({ratio[1]})" if ratio else row["plans"]["row programs"]["why"]
    eager = f"{row['eager_s'] * 1e6:.0f}" if row["eager_s"] else "-"
    return f"| {target} | {eager} | {' | '.join(cells)} | {last} |"


def summarize(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table with its geometric mean."""
    here = environment.detect("cpu")
    ways = ["row programs", *OTHERS]
    lines = [f"{here.cpu}, {here.cpus} CPUs, torch {here.torch}. Speed-ups over eager, with 95 % intervals.", ""]
    lines += [f"| program | eager, us | {' | '.join(ways)} | over the best other way |", "|---" * (len(ways) + 3) + "|"]
    lines += [write_row(target, row) for target, row in found.items()]
    ratios = {target: ratio[0] for target, row in found.items() if (ratio := over_best(row)) is not None}
    if ratios:
        logs = [math.log(one.mid) for one in ratios.values()]
        arms = [
            math.sqrt(sum(math.log(side / one.mid) ** 2 for one, side in zip(ratios.values(), sides, strict=True)))
            for sides in ([one.low for one in ratios.values()], [one.high for one in ratios.values()])
        ]
        mean, count = sum(logs) / len(logs), len(logs)
        low, mid, high = (math.exp(one) for one in (mean - arms[0] / count, mean, mean + arms[1] / count))
        behind = [target for target, one in ratios.items() if one.mid < MIN_RATIO]
        lines += ["", f"Geometric mean of {count} rows: {mid:.2f}x [{low:.2f}, {high:.2f}] the best other way."]
        lines += [f"Behind it below {MIN_RATIO}: {', '.join(behind) or 'none'}."]
    if missing := [target for target, row in found.items() if over_best(row) is None]:
        lines += [f"Without row programs: {', '.join(missing)}."]
    return lines


if __name__ == "__main__":
    main()
