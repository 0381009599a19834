"""A benchmark as CSV: one line per row, with raw figures in SI units. Each column's name holds its unit."""

from __future__ import annotations

import csv
import io

from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Interval
from torchwise.records.benchmark import Benchmark, Row
from torchwise.records.scale import scale_of
from torchwise.report import format as show
from torchwise.report.bench.table import answers_of, duel_ratio, is_inconclusive

Cell = str | float | int | bool | None


def to_csv(benchmark: Benchmark) -> str:
    """Return the table with a header, in the format of RFC 4180. The cell of an unknown value is empty."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, columns(Row(WorkloadSpec(""), ""), Benchmark(benchmark.environment, 0.0)))
    writer.writeheader()
    writer.writerows(columns(row, benchmark) for row in benchmark.rows)
    return file.getvalue()


def columns(row: Row, benchmark: Benchmark) -> dict[str, Cell]:
    """Return the cells of a row by column."""
    return {**_request_cells(row), **_result_cells(row, benchmark), **_choice_cells(row, benchmark)}


def _request_cells(row: Row) -> dict[str, Cell]:
    work, (answers, why) = row.workload, answers_of(row)
    return {
        "target": show.one_line(work.target),
        "device": work.device,
        "mode": work.mode,
        "objective": work.objective,
        "calls": work.calls,
        "seed": work.seed,
        "contender": show.one_line(row.contender),
        "precision": row.precision,
        "answers": answers,
        "why": show.one_line(why),
    }


def _result_cells(row: Row, benchmark: Benchmark) -> dict[str, Cell]:
    found = row.performance
    costs, processes = (found.costs, found.processes) if found else (None, ())
    scale = scale_of(benchmark, row.workload)
    scaled = scale.find_scaled(row)
    return {
        "is_best_of_precision": scale.best().get(row.precision) is row,
        "is_inconclusive": is_inconclusive(scaled) if scaled else None,
        "overwritten_by_next_call": found.overwrites if found else None,
        "relative_error": found.verdict.error if found else None,
        **_interval("time", "s", scaled.time if scaled else None),
        "eager_time_s": scale.eager_s if scaled else None,
        "processes": len(processes) or None,
        "rounds": sum(len(one.candidate_s) for one in processes) or None,
        **_interval("speedup", "ratio", scaled.speedup if scaled else None),
        **_interval("cold_caches_speedup", "ratio", row.cold_speedup),
        "cold_s": costs.cold_s if costs else None,
        "warm_s": costs.warm_s if costs else None,
        "peak_memory_bytes": costs.peak_memory if costs else None,
        "eager_peak_memory_bytes": scale.eager_memory if costs else None,
        "roofline_share": scaled.roofline_share(benchmark.peaks) if scaled else None,
    }


def _choice_cells(row: Row, benchmark: Benchmark) -> dict[str, Cell]:
    duel = duel_ratio(row, scale_of(benchmark, row.workload))
    return {
        "plan": show.one_line(str(row.plan)) if row.plan else None,
        "search_s": row.search_s,
        "rival": row.rival,
        **_interval("duel", "ratio", duel),
    }


def _interval(name: str, unit: str, interval: Interval | None) -> dict[str, Cell]:
    low, mid, high = (interval.low, interval.mid, interval.high) if interval else (None, None, None)
    return {f"{name}_{unit}": mid, f"{name}_low_{unit}": low, f"{name}_high_{unit}": high}
