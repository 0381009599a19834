"""A benchmark in files: JSON, Markdown for a pull request or a page of results, and CSV with raw figures."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from torchwise import parsing
from torchwise.errors import InputError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Interval
from torchwise.records import format as show
from torchwise.records.benchmark import TORCHWISE, Benchmark, Row
from torchwise.records.files import write_atomically
from torchwise.records.scale import scale_of, trust_of, with_trust
from torchwise.records.suite_summary import describe_summary, summarize, why_no_duel
from torchwise.report import document as doc
from torchwise.report.bench import LEGEND, Line, blocks, describe_machine, line_of
from torchwise.report.document import Row as TableRow
from torchwise.report.markdown import render_markdown

FIGURES = doc.figure_columns("per call", "speed-up over eager", "cold", "warm", "peak memory", "roofline")
COLUMNS = (*doc.text_columns("contender", "precision"), *FIGURES, *doc.text_columns("answers"))
OVERVIEW = (*doc.text_columns("target", "plan"), *FIGURES[:2], *doc.text_columns("over the best alternative"))


def export(benchmark: Benchmark, path: str | Path) -> Path:
    """Write a benchmark as .json (complete, schema `torchwise.bench/1`), .csv or .md, and return the path.

    The file has either the whole benchmark or its old contents, even if the write is interrupted.

    Raises:
        InputError: the suffix is another one, or the file cannot be written.
    """
    check_exportable(path)
    return write_atomically(WRITERS[Path(path).suffix](benchmark), path)


def check_exportable(path: str | Path) -> None:
    """Refuse a file whose suffix names no format to write with an `InputError`."""
    suffix = Path(path).suffix
    if suffix not in WRITERS:
        raise InputError(
            f"{path} has {f'the suffix {suffix!r}' if suffix else 'no suffix'}, but must have one of "
            f"{', '.join(WRITERS)}, such as "
            f"{Path(path).with_suffix('.json')}"
        )


def read_benchmark(path: str | Path) -> Benchmark:
    """Read a benchmark from a .json file.

    Raises:
        InputError: it cannot be read, or is no benchmark of this schema.
    """
    try:
        return parsing.read(path, Benchmark.from_json)
    except InputError as error:
        raise InputError(f"{error}; give a .json file that `torchwise bench` exported") from None


def to_markdown(benchmark: Benchmark) -> str:
    """Return the whole benchmark: the machine, the summary, and a table for each target."""
    tables = [doc.Table(one.title, COLUMNS, tuple(map(_target_row, one.lines)), one.note) for one in blocks(benchmark)]
    parts = (
        *([doc.Text(trust_of(benchmark).sentence)] if benchmark.rows else []),
        doc.Text(describe_machine(benchmark)),
        *_overview_blocks(benchmark),
        *(doc.Section(table.caption, (table,)) for table in tables),
        doc.Text(LEGEND),
    )
    return render_markdown(doc.Document("Benchmark", parts))


def overview(benchmark: Benchmark) -> str:
    """Return the summary as Markdown. If Torchwise ran on several targets, add a table with a row for each."""
    return render_markdown(doc.Document("", _overview_blocks(benchmark))).rstrip("\n")


def _overview_blocks(benchmark: Benchmark) -> tuple[doc.Items | doc.Table, ...]:
    own = [row for row in benchmark.rows if row.contender == TORCHWISE]
    table = doc.Table("Overview", OVERVIEW, tuple(_overview_row(row, benchmark) for row in own))
    return (doc.Items(tuple(describe_summary(summarize(benchmark)))), *([table] if len(own) > 1 else []))


def _overview_row(row: Row, benchmark: Benchmark) -> TableRow:
    ratio = scale_of(benchmark, row.workload).duel_ratio(row)
    versus = f"{row.rival}: {show.speedup(ratio)}" if row.is_right and ratio else why_no_duel(row)
    plan, line = str(row.plan) if row.plan else show.NONE, line_of(row, benchmark)
    ending = versus or row.answer_text
    return TableRow((row.workload.target, plan, line.time, line.speedup, ending))


def _target_row(line: Line) -> TableRow:
    cells = (line.name, line.precision, line.time, line.speedup, line.cold, line.warm, line.memory, line.roofline)
    return TableRow((*cells, line.answers), name=line.contender, notes=tuple(line.remarks))


def to_csv(benchmark: Benchmark) -> str:
    """Return a line for each row, with raw figures in SI units. Each column's name holds its unit."""
    names = _raw_cells(Row(WorkloadSpec(""), ""), Benchmark(benchmark.environment, 0.0))
    rows = (TableRow(tuple(_raw_cells(row, benchmark).values())) for row in benchmark.rows)
    return render_csv(doc.Document("", (doc.Table("Rows", doc.text_columns(*names), tuple(rows)),)))


def render_csv(document: doc.Document) -> str:
    """Return each table of a document (RFC 4180). An unknown value gives an empty cell. Figures are exact."""
    return "".join(_render_table(block) for block in document.blocks if isinstance(block, doc.Table))


def _render_table(table: doc.Table) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(table.header)
    writer.writerows([cell.text if isinstance(cell, doc.Cell) else cell for cell in row.cells] for row in table.rows)
    return file.getvalue()


def _raw_cells(row: Row, benchmark: Benchmark) -> dict[str, doc.Value]:
    """Return the cells of a row by column."""
    return {**_request_cells(row), **_result_cells(row, benchmark), **_choice_cells(row, benchmark)}


def _request_cells(row: Row) -> dict[str, doc.Value]:
    work, (answers, why) = row.workload, row.answers
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


def _result_cells(row: Row, benchmark: Benchmark) -> dict[str, doc.Value]:
    found = row.performance
    costs, processes = (found.costs, found.processes) if found else (None, ())
    scale = scale_of(benchmark, row.workload)
    scaled = scale.find_scaled(row)
    return {
        "is_best_of_precision": scale.best().get(row.level) is row,
        "is_inconclusive": scaled.is_inconclusive if scaled else None,
        "overwritten_by_next_call": found.overwrites if found else None,
        "relative_error": found.verdict.error if found else None,
        **_interval_cells("time", "s", scaled.time if scaled else None),
        "eager_time_s": scale.eager_s if scaled else None,
        "processes": len(processes) or None,
        "rounds": sum(len(one.candidate_s) for one in processes) or None,
        **_interval_cells("speedup", "ratio", scaled.speedup if scaled else None),
        **_interval_cells("cold_caches_speedup", "ratio", row.cold_speedup),
        "cold_s": costs.cold_s if costs else None,
        "warm_s": costs.warm_s if costs else None,
        "peak_memory_bytes": costs.peak_memory if costs else None,
        "eager_peak_memory_bytes": scale.eager_memory if costs else None,
        "roofline_share": scaled.roofline_share(benchmark.peaks) if scaled else None,
    }


def _choice_cells(row: Row, benchmark: Benchmark) -> dict[str, doc.Value]:
    return {
        "plan": show.one_line(str(row.plan)) if row.plan else None,
        "search_s": row.search_s,
        "rival": row.rival,
        **_interval_cells("duel", "ratio", scale_of(benchmark, row.workload).duel_ratio(row)),
    }


def _interval_cells(name: str, unit: str, interval: Interval | None) -> dict[str, doc.Value]:
    low, mid, high = (interval.low, interval.mid, interval.high) if interval else (None, None, None)
    return {f"{name}_{unit}": mid, f"{name}_low_{unit}": low, f"{name}_high_{unit}": high}


WRITERS = {
    ".json": lambda benchmark: f"{with_trust(benchmark).to_json()}\n",
    ".csv": to_csv,
    ".md": to_markdown,
}
