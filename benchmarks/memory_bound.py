"""How near Torchwise's plans come to the memory bandwidth, for programs that are bound by bytes and not operations.

The table covers each right row of Torchwise whose minimum bytes take longer than its minimum operations. It shows the
time of a large copy of as many bytes on the same hardware, the time per call, and their ratio.

Run it: python benchmarks/memory_bound.py results.json [more.json] > bound.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from summary import OURS, read

from torchwise.records.benchmark import Benchmark, Peaks, Row
from torchwise.records.scale import scale_of


def main() -> None:
    print(table(read(*sys.argv[1:])))


def table(benchmarks: Iterable[Benchmark]) -> str:
    """Return one line for each target, sorted. The last of several results counts."""
    bound = {
        row.workload.target: line
        for benchmark in benchmarks
        for row in benchmark.rows
        if benchmark.peaks and row.contender == OURS and row.is_right and is_bound(row, benchmark.peaks)
        if (line := line_of(row, benchmark))
    }
    lines = ["| program | size | plan | least, µs | per call, µs | of the bandwidth |", "|---" * 6 + "|"]
    return "\n".join([*lines, *(bound[target] for target in sorted(bound))])


def is_bound(row: Row, peaks: Peaks) -> bool:
    performance = row.performance
    if performance is None or performance.roofline is None or performance.dtype not in peaks.flops:
        return False
    return performance.roofline.bytes / peaks.bandwidth > performance.roofline.flops / peaks.flops[performance.dtype]


def line_of(row: Row, benchmark: Benchmark) -> str:
    """Return the line of a target, or "" if its time is inconclusive."""
    found = scale_of(benchmark, row.workload).find_scaled(row)
    share = found.roofline_share(benchmark.peaks) if found else None
    if found is None or share is None:
        return ""
    time = found.time
    program, _, size = row.workload.target.removeprefix("zoo:").partition("@")
    least, taken = (f"{seconds * 1e6:.3g}" for seconds in (share * time.mid, time.mid))
    return f"| {program} | {size} | {row.plan} | {least} | {taken} | {100 * share:.2g} % |"


if __name__ == "__main__":
    main()
