"""One step of decoding at batch 1: how near each way comes to the time in which a copy moves the bytes of the weights.

The model is Llama-like, in bfloat16, with a static cache (`decode_targets.py`). Each plan is verified, and timed
against eager in alternation in processes of its own, as in a search. Milliseconds are those of the plan's own calls.
Last comes a search, and its decision. A larger --budget searches again.

The copy is timed in the process of this script, and counts bytes read and bytes written. A share of its bandwidth is
that of the weights' bytes alone: by the whole time of a step, and by the time in which kernels run on the GPU.

With --allow quantized there are also plans with weights of fewer bits. Their bytes are counted as if each weight of a
linear layer had so many, without scales. Few small layers keep their 16 bits, which makes the count a little too low.
--tolerance is the error that they may have, of which float8 needs more than int8 weights.

Results go to files after each plan. The same command continues a run that was cut off, until --seconds are spent:

    python benchmarks/decode.py --label h200 --seconds 570
    python benchmarks/decode.py --label h200 --seconds 570 --allow quantized --tolerance 0.25
    python benchmarks/decode.py --label x --device cpu --size tiny --budget 60 --out /tmp   # tries this script
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import decode_targets
import gpu_programs
import torch
from decode_targets import SIZES, Size
from gpu_programs import CALLS, PLANS, Cell
from on_gpus import UNFINISHED
from small_programs import interval

import torchwise
from torchwise import environment
from torchwise.errors import TorchwiseError
from torchwise.measure.profile import bandwidth
from torchwise.plan import Plan
from torchwise.plan.choice import SKIP_MARK
from torchwise.records import format as show
from torchwise.records.candidates import rows

NAMES = (
    "captured",
    "inductor, captured",
    "reduce-overhead",
    "max-autotune",
    "max-autotune, captured",
    "coordinate descent, captured",
)
BITS = {
    **dict.fromkeys(("int8_weights", "int8_dynamic", "fp8_weights", "fp8_dynamic", "fp8_per_tensor"), 8),
    "int4_weights": 4,
}
"""Bits of a linear layer's weight after a rewrite."""
TUNED = PLANS["coordinate descent, captured"]
FEW_ROWS = PLANS["inductor, captured"].with_choice("transforms", "products_of_few_rows")
UNSPLIT = FEW_ROWS.with_choice("options", ("split_reductions", False))
COMBINED = UNSPLIT.with_choice("options", ("combo_kernels", True))
EARLY = COMBINED.with_choice("options", ("triton.enable_pdl", True))
OWN = {
    "products of few rows, captured": FEW_ROWS,
    "products of few rows, unsplit, captured": UNSPLIT,
    "products of few rows, combined, captured": COMBINED,
    "products of few rows, combined, early, captured": EARLY,
    "products of few rows, joined, captured": UNSPLIT.with_choice("transforms", "joined_products"),
    "products of few rows, coordinate descent, captured": UNSPLIT.with_choice(
        "options", ("coordinate_descent_tuning", True)
    ),
}
"""Plans with kernels of Torchwise for products of few rows, which a CPU has not."""
QUANTIZED = {
    "int8 weights, captured": TUNED.with_choice("transforms", "int8_weights"),
    "float8, captured": TUNED.with_choice("transforms", "fp8_dynamic"),
}
OWN_QUANTIZED = {
    "int8 weights, products of few rows, captured": UNSPLIT.with_choice("transforms", "int8_weights"),
    "int8 weights, products of few rows, combined, captured": COMBINED.with_choice("transforms", "int8_weights"),
    "int8 weights, products of few rows, combined, early, captured": EARLY.with_choice("transforms", "int8_weights"),
    "float8 weights, products of few rows, captured": UNSPLIT.with_choice("transforms", "fp8_weights"),
}
SEARCH = "the search"
TARGETS = Path(decode_targets.__file__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="billion", choices=SIZES)
    parser.add_argument("--plans", nargs="*", metavar="PLAN", help=f"of {list_slugs()} (default: all)")
    parser.add_argument("--seconds", type=float, default=1200.0, help="after which no plan starts, and a search ends")
    parser.add_argument("--timeout", type=float, default=150.0, help="seconds that one plan may compile")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of the search, or 0 for none")
    parser.add_argument("--allow", default="same-precision", choices=("same-precision", "quantized"))
    parser.add_argument("--tolerance", type=float, help="relative error that --allow quantized permits (default 0.02)")
    parser.add_argument("--effort", default="standard", choices=("quick", "standard", "thorough"))
    parser.add_argument("--iterations", type=int, default=60, help="timings of each plan and of eager")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"), help="cpu: plans without CUDA graphs")
    parser.add_argument("--label", required=True, help="hardware, for the names of the files, such as h200")
    parser.add_argument("--date", default=str(datetime.date.today()), help="day in the names of the files")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    if options.tolerance is not None and options.allow != "quantized":
        parser.error(f"tolerance is {options.tolerance:g}, but is for numbers of fewer bits: add --allow quantized")
    plans = list_plans(options.device, options.allow)
    try:
        chosen = gpu_programs.choose_plans(options.plans, plans)
    except ValueError as error:
        parser.error(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    numerics = options.allow + ("" if options.tolerance is None else f"-{options.tolerance:g}")
    file = options.out / f"{options.date}-{options.label}-decode-{options.size}-{numerics}.json"
    row: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"eager_s": None, "plans": {}}
    end, target, size = time.monotonic() + options.seconds, f"{TARGETS}:{options.size}", SIZES[options.size]
    copy = bandwidth(options.device)
    torch.cuda.empty_cache()  # the memory of the copy is for the workers
    try:
        for name in gpu_programs.measure_missing(target, row, {one: plans[one] for one in chosen}, options, end):
            save(file, row, name, copy, size, options)
        is_unfinished = any(one not in row["plans"] for one in chosen)
        is_wanted = row["plans"].get(SEARCH, {}).get("budget_s", 0.0) < options.budget
        if is_wanted and time.monotonic() + options.budget > end:
            print(f"too little time is left for a search of {options.budget:g} s: run this again")
            is_unfinished = True
        elif is_wanted:
            row["plans"][SEARCH], eager_s = search(target, options)
            row["eager_s"] = row["eager_s"] or eager_s
            save(file, row, SEARCH, copy, size, options)
    except TorchwiseError as error:
        parser.exit(1, f"not measured: {error}\n")
    if file.exists():
        print("\n".join(summarize(row, size, options)))
    if is_unfinished:
        parser.exit(UNFINISHED)


def list_slugs() -> str:
    """Return all plans as arguments of a command."""
    return ", ".join(map(gpu_programs.slug, list_plans("cuda", "quantized")))


def list_plans(device: str, allow: str) -> dict[str, Plan]:
    """Return the plans by their names."""
    plans = {name: PLANS[name] for name in NAMES}
    plans |= OWN if device == "cuda" else {}
    if allow == "quantized":
        plans |= QUANTIZED | (OWN_QUANTIZED if device == "cuda" else {})
    return gpu_programs.fit_device(plans, device)


def save(file: Path, row: dict[str, Any], name: str, copy: float, size: Size, options: argparse.Namespace) -> None:
    """Write the results so far. A plan keeps the bandwidth of the copy of its own run."""
    row["plans"][name]["copy_bytes_per_s"] = row["copy_bytes_per_s"] = copy
    row |= {"weight_bytes": size.count_weight_bytes(), "cache_bytes": size.cache_bytes}
    file.write_text(json.dumps(row, indent=1) + "\n")
    file.with_suffix(".md").write_text("\n".join(summarize(row, size, options)) + "\n")
    print(write_line(name, row["plans"][name], size), flush=True)


def search(target: str, options: argparse.Namespace) -> tuple[Cell, float | None]:
    """Search, and return the cell of its decision, and eager's seconds per call.

    Raises:
        TorchwiseError: the plain model cannot be used, or the budget ends before there is any result.
    """
    with tempfile.TemporaryDirectory() as folder:
        study = torchwise.tune(
            target,
            device=options.device,
            calls=CALLS,
            allow=options.allow,
            tolerance=options.tolerance,
            effort=options.effort,
            budget=options.budget,
            store=str(Path(folder, "study.db")),
            progress=False,
        ).record
    decision, found = study.decision, rows(study)
    assert decision is not None, "tune returns only decided studies"
    eager = next((row.time for row in found if row.standing == "baseline" and row.time), None)
    told = {"plan": str(decision.plan), "rewrites": list(decision.plan.transforms), "why": decision.reason}
    told |= {"seconds": study.seconds, "trials": len(study.trials), "budget_s": options.budget}
    chosen = next((row for row in found if row.is_decided and row.trial is not None), None)
    cell = {"said": "eager"} if chosen is None else gpu_programs.read_row(chosen, options.budget)
    return {**cell, **told}, eager.mid if eager else None


def bits_of(rewrites: list[str] | tuple[str, ...]) -> int:
    """Return the bits of a linear layer's weights after the rewrites of a plan."""
    return min((BITS.get(name.partition(SKIP_MARK)[0], 16) for name in rewrites), default=16)


def write_line(name: str, cell: Cell, size: Size) -> str:
    """Return the line of a plan in the table."""
    plan = (QUANTIZED | OWN_QUANTIZED).get(name)
    rewrites = cell.get("rewrites", plan.transforms if plan else ())
    shown = f"{name}: {cell['plan']}" if "plan" in cell else name
    if "speedup" not in cell:
        return f"| {shown} | {' | '.join([gpu_programs.write_cell(cell), *[show.NONE] * 4])} |"
    least_s = size.count_weight_bytes(bits_of(rewrites)) / cell["copy_bytes_per_s"]
    low, mid, high = cell["time_s"]
    busy_s = cell["busy_s"]
    cells = [
        f"{mid * 1e3:.3f} [{low * 1e3:.3f}, {high * 1e3:.3f}]",
        show.NONE if busy_s is None else f"{busy_s * 1e3:.3f}",
        show.speedup(interval(*cell["speedup"])),
        f"{least_s / mid:.0%}",
        show.NONE if not busy_s else f"{least_s / busy_s:.0%}",
    ]
    return f"| {shown} | {' | '.join(cells)} |"


def summarize(row: dict[str, Any], size: Size, options: argparse.Namespace) -> list[str]:
    """Return the table."""
    here = environment.detect(options.device)
    copy, eager_s, allowed = row["copy_bytes_per_s"], row["eager_s"], options.allow
    allowed += "" if options.tolerance is None else f", tolerance {options.tolerance:g}"
    weights, cache = (f"{row[name] / 1e6:,.1f} MB" for name in ("weight_bytes", "cache_bytes"))
    least_s = row["weight_bytes"] / copy
    lines = [
        f"{here.gpu or here.cpu}, torch {here.torch}, {options.date}, size {options.size}, {allowed}. Milliseconds and "
        "speed-ups over eager have 95 % intervals.",
        "",
        f"A step reads {weights} of weights in bfloat16, and {cache} of keys and values. A copy moves "
        f"{copy / 1e9:,.0f} GB/s, read and written: the bytes of the weights in {least_s * 1e3:.3f} ms.",
        "",
        "| plan | ms a step | GPU ms | speed-up | of the copy's bandwidth | by GPU ms |",
        "|---" * 6 + "|",
    ]
    if eager_s:
        lines.append(f"| eager | {eager_s * 1e3:.3f} | {show.NONE} | 1× | {least_s / eager_s:.0%} | {show.NONE} |")
    lines += [write_line(name, cell, size) for name, cell in row["plans"].items()]
    untold = [f"- {name}: {cell['why']}" for name, cell in row["plans"].items() if "speedup" not in cell]
    return [*lines, *(["", "Without a time:", "", *untold] if untold else [])]


if __name__ == "__main__":
    main()
