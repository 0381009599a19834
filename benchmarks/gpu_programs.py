"""Programs of many short kernels on a GPU: row programs beside eager, captures, and Inductor in its modes.

Each plan is verified, and timed against eager in alternation in a process of its own, as in a search. A row of the
table has the speed-ups over eager, and the best other way's time over that of row programs, with 95 % intervals.
Results go to a file after each program. The same command continues a run that was cut off, until --seconds are spent:

    python benchmarks/gpu_programs.py --label h200 --seconds 570      # one to three minutes a program
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import gpu_programs_targets
import small_programs

import torchwise
from torchwise import environment
from torchwise.plan import Plan
from torchwise.records.candidates import rows

INDUCTOR = Plan(backend="inductor")
PLANS = {
    "row programs": Plan(backend="row_programs", capture="call"),
    "captured": Plan(capture="call"),
    "reduce-overhead": INDUCTOR.with_choice("mode", "reduce-overhead"),
    "max-autotune": INDUCTOR.with_choice("mode", "max-autotune"),
    "rolled, captured": INDUCTOR.with_choice("scope", "rolled").with_choice("capture", "call"),
}
TARGETS = Path(gpu_programs_targets.__file__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", metavar="NAME", default=gpu_programs_targets.PROGRAMS)
    parser.add_argument("--seconds", type=float, default=1200.0, help="after which no further row starts")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that one plan may compile")
    parser.add_argument("--allow", default="same-precision", help="or lower-precision, for products of TF32")
    parser.add_argument("--iterations", type=int, default=60, help="timings of each plan and of eager")
    parser.add_argument("--label", required=True, help="hardware, for the name of the file, such as h200")
    parser.add_argument("--date", default=str(datetime.date.today()), help="day in the name of the file")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    if wrong := [name for name in options.programs if name not in gpu_programs_targets.PROGRAMS]:
        parser.error(f"programs has {wrong[0]!r}, but there are {', '.join(gpu_programs_targets.PROGRAMS)}")
    file = options.out / f"{options.date}-{options.label}-gpu-programs.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    end = time.monotonic() + options.seconds
    for name in options.programs:
        if name not in found and time.monotonic() < end:
            found[name] = measure(name, options)
            file.write_text(json.dumps(found, indent=1) + "\n")
            print(small_programs.write_row(name, found[name]), flush=True)
    here = environment.detect("cuda")
    lines = [f"{here.gpu}, torch {here.torch}, {options.date}. Speed-ups over eager, with 95 % intervals.", ""]
    lines += [
        f"| program | eager, us | {' | '.join(PLANS)} | over the best other way |",
        "|---" * (len(PLANS) + 3) + "|",
    ]
    lines += [small_programs.write_row(name, row) for name, row in found.items()]
    file.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the speed-up of each plan of a program over eager, or why it has none."""
    with tempfile.TemporaryDirectory() as folder:
        study = torchwise.tune(
            f"{TARGETS}:{name}",
            plans=PLANS.values(),
            device="cuda",
            calls=10_000_000,
            allow=options.allow,
            iterations=options.iterations,
            compile_timeout=options.timeout,
            store=str(Path(folder, "study.db")),
            progress=False,
        ).record
    by_plan = {row.plan: row for row in rows(study)}
    table = {key: small_programs.read_row(by_plan.get(plan)) for key, plan in PLANS.items()}
    eager = next((row.time for row in by_plan.values() if row.standing == "baseline" and row.time), None)
    return {"eager_s": eager.mid if eager else None, "plans": table}


if __name__ == "__main__":
    main()
