"""Lay out the needs of five systems, item by item: the call that serves each, its answer, and the test that shows it.

The tables of docs/benchmarks/five-systems-needs.md are made with it, from `needs.toml`.

Run it: python benchmarks/needs.py > tables.md
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEEDS = Path(__file__).with_name("needs.toml")
RESULTS = "../../benchmarks/results"
HEAD = "| asked for | command or call | answer | test |\n|---|---|---|---|"


@dataclass(frozen=True)
class Need:
    """One clause of an item. `says` are words of the file `results` that the answer rests on."""

    item: int
    asked: str
    call: str
    answer: str
    tests: tuple[str, ...]
    results: str = ""
    says: tuple[str, ...] = ()


def main() -> None:
    print(tables())


def read_needs() -> list[Need]:
    return [Need(**one) for one in read_file()["need"]]


def read_file() -> dict[str, Any]:
    return tomllib.loads(NEEDS.read_text())


def tables() -> str:
    """Return a heading and a table for each item."""
    needs = read_needs()
    titles: dict[str, str] = read_file()["title"]
    parts = []
    for number, title in titles.items():
        rows = [to_row(need) for need in needs if need.item == int(number)]
        parts.append("\n".join([f"## {number}. {title}", "", HEAD, *rows]))
    return "\n\n".join(parts)


def to_row(need: Need) -> str:
    """Return a line of the table. A test is named by its function, and its file where that changes."""
    answer = f"{need.answer} ([results]({RESULTS}/{need.results}))" if need.results else need.answer
    by_file: dict[str, list[str]] = {}
    for test in need.tests:
        file, _, name = test.partition("::")
        by_file.setdefault(file, []).append(f"`{name}`")
    tests = "; ".join(f"`tests/{file}`: {', '.join(names)}" for file, names in by_file.items())
    return f"| {need.asked} | {need.call} | {answer} | {tests} |"


if __name__ == "__main__":
    main()
