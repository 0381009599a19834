"""Plots of a benchmark as PNG and SVG: speed-up over eager, and the share of the roofline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchwise.errors import InputError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.benchmark import EAGER, Benchmark, Row
from torchwise.records.scale import Scale, ScaledRow, scale_of
from torchwise.report import format as show
from torchwise.report.bench.drawing import Group, Mark, Picture, draw
from torchwise.report.bench.table import TORCHWISE
from torchwise.report.summary import place

BEST_ALTERNATIVE = "best alternative"
MAX_LENGTH = 60


def write_plots(benchmark: Benchmark, folder: str | Path) -> list[Path]:
    """Write `speedup` and, if the roofline is known, `roofline`, each as .png and .svg. Return the paths.

    Raises:
        InputError: the folder cannot be made or written to.
    """
    pictures = {"speedup": speedup_picture(benchmark), "roofline": roofline_picture(benchmark)}
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [file for name, found in pictures.items() if found.groups for file in draw(found, Path(folder, name))]
    except OSError as error:
        raise InputError(f"plots cannot be written to {folder}: {error.strerror or error}") from None


def speedup_picture(benchmark: Benchmark) -> Picture:
    """Return every timed contender except eager, with a hollow mark if its answers are not correct."""
    return Picture(
        _groups(benchmark, lambda workload: _speedups(scale_of(benchmark, workload))),
        label="speed-up over eager: right of 1× is faster",
        note=f"bars: 95 % interval, hollow: answers not correct, no mark: inconclusive. {place(benchmark.environment)}",
        unit="×",
        line=1.0,
    )


def roofline_picture(benchmark: Benchmark) -> Picture:
    """Return the roofline shares of eager, the best alternative and Torchwise, if correct and in native precision."""
    return Picture(
        _groups(benchmark, lambda workload: _shares(benchmark, workload)),
        label="share of the roofline: minimum possible time over the measured time",
        note=place(benchmark.environment),
        unit=" %",
        line=100.0,
    )


def _groups(benchmark: Benchmark, marks_of: Callable[[WorkloadSpec], list[Mark]]) -> tuple[Group, ...]:
    workloads = benchmark.workloads
    found = [(_name(workload, workloads), tuple(marks_of(workload))) for workload in workloads]
    return tuple(Group(name, marks) for name, marks in found if marks)


def _speedups(scale: Scale) -> list[Mark]:
    return [
        Mark(_series(one.row), one.speedup.low, one.speedup.mid, one.speedup.high, is_hollow=not one.row.is_right)
        for one in scale.rows
        if one.row.contender != EAGER
    ]


def _shares(benchmark: Benchmark, workload: WorkloadSpec) -> list[Mark]:
    rows = scale_of(benchmark, workload).rows
    right = {one.row.contender: one for one in rows if one.row.is_right and one.row.precision == "native"}
    others = [one for name, one in right.items() if name not in (EAGER, TORCHWISE) and one.speedup.is_usable]
    best = max(others, key=lambda one: one.speedup.mid, default=None)
    shown: dict[str, ScaledRow | None] = {
        EAGER: right.get(EAGER),
        BEST_ALTERNATIVE: best,
        TORCHWISE: right.get(TORCHWISE),
    }
    shares = {name: one.roofline_share(benchmark.peaks) if one else None for name, one in shown.items()}
    return [Mark(name, 100 * share, 100 * share, 100 * share) for name, share in shares.items() if share]


def _series(row: Row) -> str:
    """Return the legend's name of a row. Each lower precision is a separate series."""
    name = show.one_line(row.contender)
    return name if row.precision == "native" else f"{name} in {show.one_line(row.precision)}"


def _name(workload: WorkloadSpec, workloads: tuple[WorkloadSpec, ...]) -> str:
    """Return the target without the zoo's prefix, and mode, device and objective if they differ among workloads."""
    words = [show.truncate(workload.target.removeprefix("zoo:"), MAX_LENGTH)]
    for field in ("mode", "device", "objective"):
        if len({getattr(other, field) for other in workloads}) > 1:
            words.append(getattr(workload, field))
    return ", ".join(words)
