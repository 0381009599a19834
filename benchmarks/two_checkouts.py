"""Time published plans in two checkouts of Torchwise, in turns on one machine, to see whether a change costs speed.

The plans are those of the contender torchwise in files of `torchwise bench --json`. A later file replaces a plan of an
earlier one. Each run is a process of its own with the sources of one checkout, by the Python of its `.venv` if it has
one. It applies the plan, compares its answer with eager's, and times calls that are queued, as in a loop.

Run it: python benchmarks/two_checkouts.py ../before . benchmarks/results/2026-11-22-h200-beyond-modes.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

CALLS_S = 1.5
LIMIT_S = 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="targets whose name contains this text")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--times", type=int, default=2, help="processes of each checkout for each plan")
    options = parser.parse_args()
    plans = read_plans(options.results)
    print("us per call, in processes that alternate; the ratio is that of the pairs, after over before", flush=True)
    for target, plan in plans.items():
        if options.only in target:
            compare((target, options.device, json.dumps(plan)), options)


def read_plans(results: list[Path]) -> dict[str, dict[str, Any]]:
    """Return the last plan of each target that the files hold."""
    found: dict[str, dict[str, Any]] = {}
    for result in results:
        for row in json.loads(result.read_text())["rows"]:
            if row["contender"] == "torchwise" and row["plan"] is not None:
                plan = {**row["plan"], "schema": "torchwise.plan/1", "options": dict(row["plan"]["options"])}
                found[row["workload"]["target"]] = plan
    return found


def compare(job: tuple[str, str, str], options: argparse.Namespace) -> None:
    target, times = job[0], options.times
    pairs = [(run_one(options.before, job), run_one(options.after, job)) for _ in range(times)]
    timed = [(a, b) for a, b in pairs if isinstance(a, float) and isinstance(b, float)]
    if len(timed) < times:
        print(f"{target}: not timed: {pairs}", flush=True)
        return
    ratios = [b / a for a, b in timed]
    figures = ", ".join(f"{a:.1f} and {b:.1f}" for a, b in timed)
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"{target}: {figures}: {statistics.median(ratios):.3f} ({spread})", flush=True)


def run_one(checkout: Path, job: tuple[str, str, str]) -> float | str:
    """Return the microseconds of a call in a process of its own, or the last line of its error."""
    checkout = checkout.resolve()
    python = checkout / ".venv" / "bin" / "python"
    sources = [checkout / "src", checkout / "plugins" / "models" / "src", checkout / "benchmarks"]
    path = os.pathsep.join([*map(str, sources), os.environ.get("PYTHONPATH", "")])
    code = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import two_checkouts as t; t.time_plan()"
    try:
        ran = subprocess.run(
            [python if python.exists() else sys.executable, "-c", code, *job],
            env={**os.environ, "PYTHONPATH": path},
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"it took over {LIMIT_S} s"
    if ran.returncode:
        return (ran.stderr.strip().splitlines() or ["no error"])[-1][:300]
    return float(ran.stdout.split()[-1])


def time_plan() -> None:
    """Time one plan with the sources that this process imports, and print the microseconds of a call."""
    import torch
    from dispatch import apply_plan
    from torch.utils.benchmark import Timer

    from torchwise.plan import Plan
    from torchwise.workload import target as targets

    name, device, plan = sys.argv[1:]
    workload = targets.load(name, device=device, seed=0)
    example = workload.examples[0]
    with torch.no_grad():
        expected = workload.call(*example.args, **example.kwargs)
        fast = apply_plan(workload.call, Plan.from_json(plan), example, device)
        for _ in range(5):
            answer = fast(*example.args, **example.kwargs)
        tensors = [
            [leaf for leaf in torch.utils._pytree.tree_leaves(each) if isinstance(leaf, torch.Tensor)]
            for each in (answer, expected)
        ]
        for got, wanted in zip(*tensors, strict=True):
            wide = wanted.to(torch.complex128 if wanted.is_complex() else torch.float64)
            error = (got.to(wide.dtype) - wide).abs().max().item() / (wide.abs().max().item() or 1.0)
            assert error < 0.1, f"an answer is off by {error:.3g} of its largest value"
        timer = Timer("fast(*args, **kwargs)", globals={"fast": fast, "args": example.args, "kwargs": example.kwargs})
        timer.blocked_autorange(min_run_time=CALLS_S)  # clocks and caches settle
        timed = timer.blocked_autorange(min_run_time=CALLS_S)
    assert not fast.statistics.original, f"the original answered: {fast.statistics.sentences}"
    print(timed.median * 1e6)


if __name__ == "__main__":
    main()
