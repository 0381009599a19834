"""`torchwise compare`: find changes for the worse between two benchmarks, in speed or correctness."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.files import check_writable
from torchwise.cli.options import json_option


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Before: a .json file that `torchwise bench` exported.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="After: another one.")],
    threshold: Annotated[
        float, typer.Option(help="Relative change beyond which a contender is slower or faster.")
    ] = 0.05,
    json: Annotated[Path | None, json_option("Write the comparison as JSON (schema torchwise.comparison/1)")] = None,
) -> None:
    """Compare two benchmarks row by row, by 95 % intervals that hold for all rows together.

    A contender is slower only if both its time and its time relative to eager grew, so that a slower machine fails
    nothing.

    Exit codes: 0 nothing is slower, wrong or lost; 1 something is; 2 bad input; 4 inconclusive: of some the
    measurements cannot tell, and nothing else is slower, wrong or lost.
    """
    from rich.console import Console

    from torchwise.report import comparison
    from torchwise.report.bench import read_benchmark, render_comparison
    from torchwise.report.json_export import write_json

    check_writable(json)
    found = comparison.compare(read_benchmark(a), read_benchmark(b), threshold)
    Console(highlight=False).print(render_comparison(found))
    if json:
        write_json(found, json)
    raise typer.Exit(found.exit_code)
