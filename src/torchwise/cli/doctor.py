"""`torchwise doctor`: check whether this machine is ready, with advice if it is not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli.common import write_document
from torchwise.cli.options import json_option

if TYPE_CHECKING:
    from rich.table import Table

    from torchwise.diagnose.doctor import Finding

SCHEMA = "torchwise.doctor/1"
STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}


def doctor(
    json: Annotated[Path | None, json_option("Write the findings as JSON")] = None,
) -> None:
    """Check this machine for problems with tuning, and give advice. The exit code is 1 if something is bad."""
    from rich.console import Console

    from torchwise.diagnose.doctor import Status, diagnose

    console = Console()
    with Console(stderr=True).status("inspecting this machine, and compiling a small function"):
        findings = diagnose()
    console.print(_make_table(findings))
    count = {status: sum(finding.status is status for finding in findings) for status in Status}
    console.print(_summary_line(count[Status.BAD], count[Status.WARN]))
    if json is not None:
        write_document(json, SCHEMA, {"findings": [asdict(finding) for finding in findings]})
    raise typer.Exit(1 if count[Status.BAD] else 0)


def _make_table(findings: list[Finding]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "check", "result", "advice"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        mark = Text(finding.status.value, style=STYLES[finding.status.value])
        table.add_row(mark, Text(finding.topic), Text(finding.found), Text(finding.advice))
    return table


def _summary_line(bad: int, warnings: int) -> str:
    counted = f"{warnings} warning{'s' * (warnings != 1)}"
    if bad:
        return f"\n{bad} must be fixed, {counted}."
    return f"\nReady, with {counted}." if warnings else "\nReady."
