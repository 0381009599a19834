"""Write a benchmark to a file in the format of its suffix, and read it from JSON."""

from __future__ import annotations

from pathlib import Path

from torchwise import parsing
from torchwise.errors import InputError
from torchwise.records.benchmark import Benchmark
from torchwise.records.scale import with_trust
from torchwise.report.bench.csv import to_csv
from torchwise.report.bench.markdown import to_markdown
from torchwise.report.json_export import write_atomically

WRITERS = {
    ".json": lambda benchmark: f"{with_trust(benchmark).to_json()}\n",
    ".csv": to_csv,
    ".md": to_markdown,
}


def export(benchmark: Benchmark, path: str | Path) -> Path:
    """Write a benchmark as .json (complete, schema `torchwise.bench/1`), .csv or .md, and return the path.

    The file has either the whole benchmark or its old contents, even if the write is interrupted.

    Raises:
        InputError: the suffix is another one, or the file cannot be written.
    """
    check_exportable(path)
    return write_atomically(WRITERS[Path(path).suffix](benchmark), path)


def check_exportable(path: str | Path) -> None:
    """Refuse a file whose suffix names no format to write.

    Raises:
        InputError: the suffix names no format.
    """
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
