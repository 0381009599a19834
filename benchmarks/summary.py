"""Summarise Torchwise's speed-ups from results of benchmarks, in total and target by target.

Several results are combined: for a target in more than one, the last rows count. A target counts if it has as many
contenders as any of its results.

Run it: python benchmarks/summary.py results.json [more.json] > summary.md

The pages of docs/benchmarks/ are made with it, from the results in `results/current.toml`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torchwise.records import format as show
from torchwise.records.benchmark import Benchmark, Row
from torchwise.records.suite_summary import summarize
from torchwise.report.bench_files import overview

RESULTS = Path(__file__).with_name("results")
OURS = "torchwise"


def main() -> None:
    print(overview(merge_benchmarks(read(*sys.argv[1:]))))


def current(page: str) -> list[Benchmark]:
    """Return the current results for a page of docs/benchmarks/."""
    return read(*(RESULTS / f"{name}.json" for name in list_names(page)))


def current_texts(page: str) -> dict[str, str]:
    """Return the current results that are plain text or Markdown, by the names of their files."""
    return {name: (RESULTS / name).read_text() for name in list_names(page)}


def list_names(page: str) -> list[str]:
    names: list[str] = tomllib.loads((RESULTS / "current.toml").read_text())[page]
    return names


def read(*files: str | Path) -> list[Benchmark]:
    return [Benchmark.from_json(Path(file).read_bytes()) for file in files]


def merge_benchmarks(benchmarks: Iterable[Benchmark]) -> Benchmark:
    """Return the complete targets of several results as one, sorted."""
    found: dict[str, tuple[Row, ...]] = {}
    for benchmark in benchmarks:
        rows = {workload.target: benchmark.select_rows(workload) for workload in benchmark.workloads}
        most = max(map(len, rows.values()))
        found |= {target: own for target, own in rows.items() if len(own) == most}
    return replace(benchmark, rows=tuple(row for target in sorted(found) for row in found[target]))


def brief(benchmark: Benchmark) -> str:
    """Return table cells: targets, over eager, over the best other, faster, equal, slower, inconclusive, left."""
    found = summarize(benchmark)
    (eager,) = (mean.ratio for mean in found.speedups if mean.contender == OURS)
    (best,) = (mean.ratio for mean in found.duels)
    left = sum(row.is_its_rival for row in found.equal)
    counts = len(found.faster), len(found.equal) - left, len(found.slower), len(found.inconclusive), left
    return " | ".join([str(found.targets), show.ratio(eager), show.ratio(best), *map(str, counts)])


if __name__ == "__main__":
    main()
