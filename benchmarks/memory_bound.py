"""How near Torchwise's plans come to the memory's bandwidth, where it is bytes and not operations that bound a program.

For each right row of Torchwise whose least bytes take longer than its least operations: the time that a large copy of
as many bytes takes on the hardware of the results, the time per call, and the former's share in it.

Run it: python benchmarks/memory_bound.py results.json [more.json] > bound.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from torchwise.records.benchmark import Benchmark, Peaks, Row

OURS = "torchwise"


def main() -> None:
    print("| program | size | plan | least, µs | per call, µs | of the bandwidth |\n|---|---|---|---|---|---|")
    benchmarks = [Benchmark.from_json(Path(file).read_bytes()) for file in sys.argv[1:]]
    bound = {
        row.workload.target: line_of(row, benchmark.peaks)
        for benchmark in benchmarks
        for row in benchmark.rows
        if benchmark.peaks and row.contender == OURS and row.is_right and is_bound(row, benchmark.peaks)
    }
    for target in sorted(bound):
        print(bound[target])


def is_bound(row: Row, peaks: Peaks) -> bool:
    performance = row.performance
    if performance is None or performance.roofline is None or performance.dtype not in peaks.flops:
        return False
    return performance.roofline.bytes / peaks.bandwidth > performance.roofline.flops / peaks.flops[performance.dtype]


def line_of(row: Row, peaks: Peaks) -> str:
    share, time = row.share_of(peaks), row.time
    assert share is not None
    assert time is not None
    program, _, size = row.workload.target.removeprefix("zoo:").partition("@")
    least, taken = (f"{seconds * 1e6:.3g}" for seconds in (share * time.mid, time.mid))
    return f"| {program} | {size} | {row.plan} | {least} | {taken} | {100 * share:.2g} % |"


if __name__ == "__main__":
    main()
