"""Check the claims of the five earlier systems against a benchmark of the zoo, claim by claim.

For each claim and size, the table shows the fastest mode of `torch.compile` and Torchwise separately, as the claims
were about the former. A claim holds if the whole 95 % interval lies at or above it, and fails if the interval lies
below.

Claims about a lower precision are compared with results that allowed it. The table says so if the chosen plan still
computes in the model's own precision.

Run it: python benchmarks/claims.py results.json [more.json] [--allowed reduced.json] > claims.md
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable
from pathlib import Path

from summary import OURS, read

from torchwise.records.benchmark import Benchmark, Row

CLAIMS = Path(__file__).with_name("claims.toml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", help=".json files")
    parser.add_argument("--allowed", nargs="+", default=[], help=".json files of runs with --allow lower-precision")
    options = parser.parse_args()
    print(table(read(*options.results), read(*options.allowed)))


def table(benchmarks: Iterable[Benchmark], allowed: Iterable[Benchmark] = ()) -> str:
    """Return one line for each claim and size, from the last of several rows.

    Args:
        benchmarks: the benchmarks, in order.
        allowed: the same for runs that allowed lower precision.
    """
    native, reduced = (
        {row.key: row for benchmark in several for row in benchmark.rows} for several in (benchmarks, allowed)
    )
    lines = ["| system | claim | size | torch.compile, its fastest mode | | Torchwise | |", "|---" * 7 + "|"]
    for claim in tomllib.loads(CLAIMS.read_text())["claim"]:
        rows = reduced if "precision" in claim else native
        lines += lines_of(claim, [row for row in rows.values() if "precision" in claim or row.precision == "native"])
    return "\n".join(lines)


def lines_of(claim: dict[str, object], rows: list[Row]) -> list[str]:
    """Return one line for each measured size of the claim's target, or one that says that there is none."""
    sizes = dict.fromkeys(r.workload.target for r in rows if r.workload.target.partition("@")[0] == claim["target"])
    lines = []
    for target in sizes:
        found = [row for row in rows if row.workload.target == target and row.is_right]
        mode_rows = [
            r for r in found if r.contender not in ("eager", OURS) and r.contender == claim.get("by", r.contender)
        ]
        torchwise_rows = [row for row in found if row.contender == OURS]
        has_modes = mode_rows or "precision" not in claim
        modes = check_claim(claim, mode_rows) if has_modes else ("no mode lowers the precision", "")
        cells = [*modes, *check_claim(claim, torchwise_rows)]
        lines.append(f"| {claim['system']} | {claim['says']} | {target.partition('@')[2]} | {' | '.join(cells)} |")
    return lines or [f"| {claim['system']} | {claim['says']} | – | not measured | | not measured | |"]


def check_claim(claim: dict[str, object], rows: list[Row]) -> tuple[str, str]:
    """Return the measurement, and whether the claim holds."""
    if not rows:
        return "not measured", ""
    best = max(rows, key=lambda row: row.speedup.mid if row.speedup else 0.0)
    if "memory" in claim:
        return check_memory(float(str(claim["memory"])), best)
    speed, claimed = best.speedup, float(str(claim["speed"]))
    assert speed is not None
    verdict = "held" if speed.low >= claimed else "not held" if speed.high < claimed else "in the interval"
    if "precision" in claim and best.precision == "native":
        verdict = "not by it: its own precision is faster"
    return f"{mode_prefix(best)}{speed}×", verdict


def check_memory(claimed: float, row: Row) -> tuple[str, str]:
    assert row.performance is not None
    costs = row.performance.costs
    if not costs.peak_memory or not costs.baseline_peak_memory:
        return "memory not measured", ""
    saved = 1 - costs.peak_memory / costs.baseline_peak_memory
    if saved < 0.005:
        return "none saved", "not held"
    return f"{mode_prefix(row)}{100 * saved:.0f} % saved", "held" if saved >= claimed else "not held"


def mode_prefix(row: Row) -> str:
    """Return the row's mode. Torchwise has its own column."""
    return "" if row.contender == OURS else f"{row.contender} "


if __name__ == "__main__":
    main()
