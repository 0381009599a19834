"""The tables of a document as CSV, in the format of RFC 4180."""

from __future__ import annotations

import csv
import io

from torchwise.report.document import Cell, Document, Table


def render_csv(document: Document) -> str:
    """Return each table of a document with its header. An unknown value gives an empty cell. Figures are exact."""
    return "".join(_render_table(block) for block in document.blocks if isinstance(block, Table))


def _render_table(table: Table) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(table.header)
    writer.writerows([cell.text if isinstance(cell, Cell) else cell for cell in row.cells] for row in table.rows)
    return file.getvalue()
