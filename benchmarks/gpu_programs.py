"""Programs of many short kernels on a GPU: kernels of Torchwise beside eager, captures, and Inductor in its modes.

Each plan is verified, and timed against eager in alternation in processes of its own, as in a search. A row of the
table has the speed-ups over eager, and that of the fastest plan with kernels of Torchwise over the best other way and
over the best mode of `torch.compile`, with 95 % intervals. Such kernels are row programs (captured or not), products of
few rows, and float32 products as three TF32 ones. With --allow lower-precision plans multiply in TF32 or bfloat16,
with a mode in float32 beside them. Programs without products are left out, and the results have another file.

A plan whose compile takes over --timeout is cut off, which does not say that it is slow. If a plain compile by Inductor
is cut off, other plans that compile the same whole graph are not begun. The table names both, and their number.

Results go to a file after each plan. The same command continues a run that was cut off, until --seconds are spent, and
--plans of a later one are added to the rows. A longer --timeout tries again those that were cut off:

    python benchmarks/gpu_programs.py --label h200 --seconds 570
    python benchmarks/gpu_programs.py --label h200 --seconds 570 --plans max-autotune --timeout 120
    python benchmarks/gpu_programs.py --label h200 --seconds 570 --allow lower-precision
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_programs_targets
from on_gpus import UNFINISHED
from small_programs import interval

import torchwise
from torchwise import environment
from torchwise.errors import TorchwiseError
from torchwise.plan import Plan
from torchwise.records import FailureKind, Outcome, Trial, TrialState
from torchwise.records import format as show
from torchwise.records.benchmark import EAGER
from torchwise.records.candidates import Row, rows
from torchwise.records.statistics import Interval, ratio_of

CALLS = 10_000_000
OWN, OWN_UNCAPTURED, FEW_ROWS = "row programs", "row programs, not captured", "products of few rows, captured"
FEW_ROWS_EARLY, THREE_TF32 = "products of few rows, early, captured", "three TF32, captured"
COMPILED_RNN, ROLLED_RNN, ISOLATED_RNN = (
    "compiled RNN, captured",
    "compiled RNN, rolled, captured",
    "isolated RNN, captured",
)
RNN_OF_FEW_ROWS, RNN_OF_FEW_ROWS_EARLY = (
    "compiled RNN of few rows, captured",
    "compiled RNN of few rows, early, captured",
)
KERNELS = (OWN, OWN_UNCAPTURED, FEW_ROWS, FEW_ROWS_EARLY, THREE_TF32, RNN_OF_FEW_ROWS, RNN_OF_FEW_ROWS_EARLY)
"""Plans with kernels of Torchwise."""
NO_GRAPHS = "max-autotune-no-cudagraphs"
INDUCTOR = Plan(backend="inductor")
CAPTURED = INDUCTOR.with_choice("capture", "call")
EARLY = CAPTURED.with_choice("options", ("triton.enable_pdl", True))
PLANS = {
    OWN: Plan(backend="row_programs", capture="call"),
    OWN_UNCAPTURED: Plan(backend="row_programs"),
    "captured": Plan(capture="call"),
    "inductor, captured": CAPTURED,
    FEW_ROWS: CAPTURED.with_choice("transforms", "products_of_few_rows"),
    FEW_ROWS_EARLY: EARLY.with_choice("transforms", "products_of_few_rows"),
    THREE_TF32: CAPTURED.with_choice("options", ("max_autotune_gemm_backends", "ATEN,TRITON,TF32X3")),
    COMPILED_RNN: CAPTURED.with_choice("transforms", "compiled_rnn"),
    RNN_OF_FEW_ROWS: replace(CAPTURED, transforms=("compiled_rnn", "products_of_few_rows")),
    RNN_OF_FEW_ROWS_EARLY: replace(EARLY, transforms=("compiled_rnn", "products_of_few_rows")),
    ROLLED_RNN: replace(CAPTURED, scope="rolled").with_choice("transforms", "compiled_rnn"),
    ISOLATED_RNN: CAPTURED.with_choice("transforms", "isolate_rnn"),
    "reduce-overhead": INDUCTOR.with_choice("mode", "reduce-overhead"),
    "max-autotune": INDUCTOR.with_choice("mode", "max-autotune"),
    "max-autotune, captured": CAPTURED.with_choice("mode", NO_GRAPHS),
    "coordinate descent, captured": CAPTURED.with_choice("options", ("coordinate_descent_tuning", True)),
    "rolled, captured": CAPTURED.with_choice("scope", "rolled"),
}
BFLOAT16, MODE_IN_FLOAT32 = "bfloat16, max-autotune, captured", "max-autotune in float32"
MORE_IF_LOWER = {
    BFLOAT16: replace(PLANS["max-autotune, captured"], precision="autocast_bf16"),
    MODE_IN_FLOAT32: PLANS["max-autotune"],
}
"""With lower precision: products in bfloat16, and what a user of the fastest mode has who changes no precision."""
MODES = ("reduce-overhead", "max-autotune")
"""Modes of `torch.compile`, as a user would pick them by hand."""
PLAIN = ("inductor, captured", "reduce-overhead")
"""Plans of which no other one that compiles the whole graph takes less time to compile."""
CUT_OFF, NOT_BEGUN, DISTURBED = "cut off", "not begun", "disturbed"
TARGETS = Path(gpu_programs_targets.__file__)
KNOWN = (*gpu_programs_targets.PROGRAMS, *gpu_programs_targets.ZOO)
WORDS = {
    FailureKind.INTERFERED: DISTURBED,
    FailureKind.OUT_OF_BUDGET: DISTURBED,
    FailureKind.UNSUPPORTED: "refused",
}
"""Failures in a word. All others have their own."""
Cell = dict[str, Any]
"""The speed-up of a plan as three numbers, or what became of it in a word (`said`), and why."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--programs", nargs="+", metavar="NAME", help=f"of {', '.join(KNOWN)}; those of the zoo may have a size, as in "
        "neuron@large (default: all, or with --allow lower-precision those with products)"
    )  # fmt: skip
    parser.add_argument(
        "--plans", nargs="+", metavar="PLAN", help=f"of {', '.join(map(slug, (*PLANS, *MORE_IF_LOWER)))} (default: all)"
    )
    parser.add_argument("--seconds", type=float, default=1200.0, help="after which no further plan starts")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that one plan may compile")
    parser.add_argument("--allow", default="same-precision", choices=("same-precision", "lower-precision"))
    parser.add_argument("--effort", default="standard", choices=("quick", "standard", "thorough"), help="of each trial")
    parser.add_argument("--iterations", type=int, default=60, help="timings of each plan and of eager")
    parser.add_argument(
        "--device", default="cuda", choices=("cpu", "cuda"), help="cpu tries this script: plans without CUDA graphs"
    )
    parser.add_argument("--label", required=True, help="hardware, for the name of the file, such as h200")
    parser.add_argument("--date", default=str(datetime.date.today()), help="day in the name of the file")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    plans = list_plans(options.device, options.allow)
    try:
        names, chosen = choose_programs(options.programs, options.allow), choose_plans(options.plans, plans)
    except ValueError as error:
        parser.error(str(error))
    file = options.out / f"{options.date}-{options.label}-gpu-programs-{options.allow}.json"
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    end, failed = time.monotonic() + options.seconds, list[str]()
    for name in names:
        row = found.get(name, {"eager_s": None, "plans": {}})
        try:
            for _ in measure_missing(find_target(name), row, {one: plans[one] for one in chosen}, options, end):
                found[name] = row
                file.write_text(json.dumps(found, indent=1) + "\n")
        except TorchwiseError as error:  # such as a program for which the memory is too small: the others are measured
            failed.append(f"{name}: {error}")
        if name in found:
            print(write_row(name, row, list(plans)), flush=True)
            file.with_suffix(".md").write_text("\n".join(summarize(found, list(plans), options)) + "\n")
    print("\n".join(summarize(found, list(plans), options)))
    if failed:
        parser.exit(1, "\n".join(["not measured:", *failed, ""]))
    if any(one not in found.get(name, {"plans": ()})["plans"] for name in names for one in chosen):
        parser.exit(UNFINISHED, "not measured to its end: the same command goes on\n")


def slug(name: str) -> str:
    """Return the name of a plan as an argument of a command."""
    return name.replace(",", "").replace(" ", "-")


def list_plans(device: str, allow: str) -> dict[str, Plan]:
    """Return the plans by their names. A CPU has those without CUDA graphs and without options of Triton."""
    plans = fit_device(PLANS, device)
    if not lowers(allow):
        return plans
    rounded = {name: replace(plan, precision="tf32") for name, plan in plans.items() if name != THREE_TF32}
    return rounded | fit_device(MORE_IF_LOWER, device)


def fit_device(plans: dict[str, Plan], device: str) -> dict[str, Plan]:
    """Return plans for a device: on a CPU those that need no GPU, each once."""
    if device != "cpu":
        return dict(plans)
    kept = {name: plan for name, plan in plans.items() if plan.mode in ("default", NO_GRAPHS) and not plan.options}
    kept = {name: plan for name, plan in kept.items() if "products_of_few_rows" not in plan.transforms}
    found: dict[str, Plan] = {}
    for name, plan in kept.items():
        without = replace(plan, capture="none")
        if not without.is_eager and without not in found.values():
            found[name] = without
    return found


def lowers(allow: str) -> bool:
    """Whether products may be rounded."""
    return allow == "lower-precision"


def choose_programs(names: list[str] | None, allow: str) -> list[str]:
    """Return the programs to measure.

    Raises:
        ValueError: there is none of a name. The message lists all.
    """
    if names is None:
        return [name for name in KNOWN if not (lowers(allow) and name in gpu_programs_targets.WITHOUT_PRODUCTS)]
    for name in names:
        base, _, size = name.partition("@")
        if base not in KNOWN or (size and base not in gpu_programs_targets.ZOO):
            raise ValueError(f"programs has {name!r}, but there are {', '.join(KNOWN)}, and a size only for the zoo's")
    return names


def choose_plans(slugs: list[str] | None, plans: dict[str, Plan]) -> list[str]:
    """Return the names of the plans to measure, in the order in which they may spare each other.

    Raises:
        ValueError: there is none of a name on this device. The message lists all.
    """
    by_slug = {slug(name): name for name in plans}
    if wrong := [one for one in slugs or () if one not in by_slug]:
        raise ValueError(f"plans has {wrong[0]!r}, but on this device there are {', '.join(by_slug)}")
    return [name for one, name in by_slug.items() if slugs is None or one in slugs]


def find_target(name: str) -> str:
    """Return the target of a program."""
    base, at, size = name.partition("@")
    return f"{gpu_programs_targets.ZOO[base]}{at}{size}" if base in gpu_programs_targets.ZOO else f"{TARGETS}:{name}"


def measure_missing(
    target: str, row: dict[str, Any], plans: dict[str, Plan], options: argparse.Namespace, end: float
) -> Iterator[str]:
    """Measure the plans that a target's row lacks, until a time, and yield each name once the row has its cell."""
    with tempfile.TemporaryDirectory() as folder:  # in which later plans find the profile of the plain model
        for key, plan in plans.items():
            if is_done(row["plans"].get(key), options.timeout) or time.monotonic() >= end:
                continue
            if blocker := find_blocker(plan, row["plans"], options.timeout):
                cell, eager_s = spare(blocker, options.timeout), None
            else:
                cell, eager_s = measure(target, plan, options, Path(folder, "study.db"))
            row["plans"][key], row["eager_s"] = cell, row["eager_s"] or eager_s
            yield key


def is_done(cell: Cell | None, timeout_s: float) -> bool:
    """Whether a plan needs no further try: one that was cut off is tried again with more time."""
    if cell is None or cell.get("said") == DISTURBED:
        return False
    return cell.get("said") not in (CUT_OFF, NOT_BEGUN) or cell["timeout_s"] >= timeout_s


def find_blocker(plan: Plan, cells: dict[str, Cell], timeout_s: float) -> str | None:
    """Return the name of a plain compile of the same graph that was cut off, or None."""
    if plan.backend != INDUCTOR.backend or plan.scope != "whole":
        return None
    cut = (key for key in PLAIN if cells.get(key, {}).get("said") == CUT_OFF and cells[key]["timeout_s"] >= timeout_s)
    return next(cut, None)


def spare(blocker: str, timeout_s: float) -> Cell:
    """Return the cell of a plan that is not begun."""
    why = f"not begun, as {blocker} was cut off, and compiles the same graph"
    return {"said": NOT_BEGUN, "why": why, "timeout_s": timeout_s}


def measure(target: str, plan: Plan, options: argparse.Namespace, store: Path) -> tuple[Cell, float | None]:
    """Try a plan of a target as in a search, and return its cell, and eager's seconds per call.

    Raises:
        TorchwiseError: the plain model cannot be used or profiled.
    """
    study = torchwise.tune(
        target,
        plans=[plan],
        device=options.device,
        calls=CALLS,
        allow=options.allow,
        tolerance=getattr(options, "tolerance", None),
        effort=options.effort,
        iterations=options.iterations,
        compile_timeout=options.timeout,
        store=str(store),
        progress=False,
    ).record
    found = rows(study)
    eager = next((row.time for row in found if row.standing == "baseline" and row.time), None)
    return read_row(
        next((row for row in found if row.plan == plan), None), options.timeout
    ), eager.mid if eager else None


def read_row(row: Row | None, timeout_s: float) -> Cell:
    """Return the cell of a plan's row. Only a verified plan has a speed-up."""
    trial = row.trial if row is not None else None
    if row is None or trial is None:
        return {"said": DISTURBED, "why": "not tried"}
    if not trial.is_verified or row.speedup is None:
        return {"said": name_end(trial), "why": row.why, "timeout_s": timeout_s}
    times, busy = [one.candidate_time for one in trial.processes], [one.busy_s for one in trial.processes]
    return {
        "speedup": [row.speedup.low, row.speedup.mid, row.speedup.high],
        # Of its own calls. The row's is eager's time in another process over this speed-up.
        "time_s": [min(t.low for t in times), statistics.median(t.mid for t in times), max(t.high for t in times)],
        "busy_s": min((one for one in busy if one is not None), default=None),
        "cold_s": row.cold_s,
        "error": row.error,
        "processes": len(trial.processes),
    }


def name_end(trial: Trial) -> str:
    """Return in a word why a plan has no speed-up."""
    if trial.failure is not None:
        is_cut = trial.failure.kind is FailureKind.TIMED_OUT and trial.failure.stage.is_compiling
        return CUT_OFF if is_cut else WORDS.get(trial.failure.kind, str(trial.failure.kind))
    if trial.verdict is not None and trial.verdict.outcome is not Outcome.PASS:
        return "wrong" if trial.verdict.outcome is Outcome.FAIL else "not comparable"
    return DISTURBED if not trial.state.is_finished or trial.state is TrialState.PRUNED else str(trial.state)


def write_row(name: str, row: dict[str, Any], plans: list[str]) -> str:
    """Return the line of a program in the table."""
    cells = [write_cell(row["plans"].get(key)) for key in plans]
    eager = f"{row['eager_s'] * 1e6:.0f}" if row["eager_s"] else show.NONE
    return f"| {name} | {eager} | {' | '.join([*cells, compare(row, plans), compare_with_modes(row)])} |"


def write_cell(cell: Cell | None) -> str:
    if cell is None:
        return "not tried"
    if "speedup" in cell:
        return show.speedup(interval(*cell["speedup"]))
    return f"{cell['said']} at {cell['timeout_s']:.0f} s" if cell["said"] == CUT_OFF else str(cell["said"])


def compare(row: dict[str, Any], plans: list[str]) -> str:
    """Return the speed of own kernels over the best other way, and how many ways have no time to compare with."""
    others = [key for key in plans if key not in KERNELS]
    found = read_speedups(row)
    if (own := pick_own(found)) is None:
        return show.NONE
    ways = {EAGER: interval(1.0, 1.0, 1.0)} | {key: found[key] for key in others if key in found}
    best = max(ways, key=lambda key: ways[key].mid)
    untimed = sum(key not in found for key in others)
    rest = f", {untimed} of {len(others)} others without a time" if untimed else ""
    return f"{show.speedup(ratio_of(own, ways[best]))} ({best}{rest})"


def compare_with_modes(row: dict[str, Any]) -> str:
    """Return the speed of own kernels over the best mode of `torch.compile`."""
    found = read_speedups(row)
    own, modes = pick_own(found), {key: found[key] for key in MODES if key in found}
    if own is None or not modes:
        return show.NONE
    best = max(modes, key=lambda key: modes[key].mid)
    untimed = len(MODES) - len(modes)
    rest = f", {untimed} of {len(MODES)} modes without a time" if untimed else ""
    return f"{show.speedup(ratio_of(own, modes[best]))} ({best}{rest})"


def read_speedups(row: dict[str, Any]) -> dict[str, Interval]:
    """Return the speed-ups of a row over eager, by plan."""
    return {key: interval(*cell["speedup"]) for key, cell in row["plans"].items() if "speedup" in cell}


def pick_own(found: dict[str, Interval]) -> Interval | None:
    """Return the speed-up of the fastest plan with kernels of Torchwise, or None if there is none."""
    return max((found[key] for key in KERNELS if key in found), key=lambda one: one.mid, default=None)


def summarize(found: dict[str, dict[str, Any]], plans: list[str], options: argparse.Namespace) -> list[str]:
    """Return the table, and why plans have no speed-up."""
    here = environment.detect(options.device)
    products = "products in TF32 or bfloat16" if lowers(options.allow) else "same precision"
    lines = [
        f"{here.gpu or here.cpu}, torch {here.torch}, {options.date}, {products}. Speed-ups over eager, with 95 % "
        "intervals.",
        "",
        f"| program | eager, µs | {' | '.join(plans)} | own kernels over the best other way | over the best mode |",
        "|---" * (len(plans) + 4) + "|",
        *(write_row(name, row, plans) for name, row in found.items()),
    ]
    untimed = [
        f"- {name}, {key}: {cell['why']}"
        for name, row in found.items()
        for key, cell in row["plans"].items()
        if "speedup" not in cell
    ]
    told = ["", "Plans without a time. One that was cut off or not begun may be faster:", "", *untimed]
    return [*lines, *(told if untimed else [])]


if __name__ == "__main__":
    main()
