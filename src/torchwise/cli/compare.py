"""`torchwise compare`: find regressions between two benchmarks, in speed or correctness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.options import json_option


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Before: a .json file that `torchwise bench` exported.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="After: another such file.")],
    threshold: Annotated[float, typer.Option(help="Relative change of speed that is ignored.")] = 0.05,
    json: Annotated[Path | None, json_option("Write the comparison as JSON (schema torchwise.comparison/1)")] = None,
) -> None:
    """Compare two benchmarks row by row, by 95 % intervals that are corrected for the number of rows.

    A contender is slower only if both its time and its time relative to eager grew. So a slower machine alone is no
    regression.

    Exit codes: 0 no row is slower, wrong or lost. 1 a row is slower, wrong or lost. 2 invalid input. 4 inconclusive:
    the measurements cannot tell for some rows, and no other row is slower, wrong or lost.
    """
    from rich.console import Console

    from torchwise.records import comparison
    from torchwise.records.files import write_json
    from torchwise.report import read_benchmark, render_comparison

    result = comparison.compare(read_benchmark(a), read_benchmark(b), threshold)
    Console(highlight=False).print(render_comparison(result))
    if json:
        write_json(result, json)
    raise typer.Exit(result.exit_code)
