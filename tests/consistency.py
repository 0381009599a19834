"""Whether the figures of one output agree: read back from the text, JSON and HTML that people and programs get.

Each `check_…` takes a record with what was rendered from it, and raises AssertionError that names the figures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from torchwise.records import Study
from torchwise.report.rows import Row, rows

UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0}
SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
ROUNDING = 0.011
"""Relative difference that two figures of three digits each may show when they are multiplied."""


def read_seconds(text: str) -> float:
    """Read a duration as outputs write it: "45.6 ms", "2 min 5 s"."""
    parts = re.findall(r"(-?[\d,.]+) (ns|µs|ms|s|min|h|days)\b", text)
    assert parts, f"{text!r} is no duration"
    return sum(float(value.replace(",", "")) * UNITS[unit] for value, unit in parts)


def read_size(text: str) -> float:
    """Read a size as outputs write it: "1.25 GiB"."""
    found = re.search(r"([\d,.]+) (B|KiB|MiB|GiB|TiB)\b", text)
    assert found, f"{text!r} is no size"
    return float(found[1].replace(",", "")) * SIZES[found[2]]


def read_ratio(text: str) -> float | None:
    """Read a factor as outputs write it, "1.52× [1.49, 1.56]"; None where the ends alone are told."""
    found = re.match(r"([\d,.]+)×", text)
    return float(found[1].replace(",", "")) if found else None


def agree(one: float, other: float, what: str, tolerance: float = ROUNDING) -> None:
    """Raise AssertionError unless two figures are equal within the rounding of what was printed."""
    assert math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-9), f"{what}: {one:.6g} and {other:.6g} disagree"


def check_study(study: Study, text: str, page: str) -> None:
    """Hold the terminal, the JSON and the page of a study against each other and against themselves.

    The terminal is 300 columns wide, so that no cell folds.
    """
    _check_table(study, list(_cells_of_text(study, text)), "the terminal")
    _check_table(study, _cells_of_page(page), "the page")
    _check_json(study, study.to_dict())
    _check_decision(study, " ".join(text.replace("│", " ").split()))
    trust = study.trust.sentence
    if study.is_timed:
        assert " ".join(text.split()).startswith(trust), f"the terminal does not begin with {trust!r}"
        assert trust in page, f"the page does not say {trust!r}"


def _cells_of_text(study: Study, text: str) -> Iterator[dict[str, str]]:
    """Yield the table's rows as columns by name: cells are at least two blanks apart, and fold downwards."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if "speed-up" in line and "per call" in line)
    header = [(found[0].strip(), found.start(), found.end()) for found in re.finditer(r"\S+(?: \S+)*", lines[start])]
    numbers = iter(row.number for row in rows(study))
    for line in lines[start + 1 :]:
        if not line.strip() or line.lstrip().startswith(("Worth", "Next", "Not tried", "Why")):
            break
        cells = {name: line[_left(line, begin, end) : _right(line, begin, end)].strip() for name, begin, end in header}
        if cells["per call"] and not set(line) <= set(" ─━"):
            yield {**cells, "number": str(next(numbers))}


def _left(line: str, begin: int, end: int) -> int:
    """Return where the cell over a column's name begins."""
    at = min(end, len(line)) - 1
    found = [match for match in re.finditer(r"\S+(?: \S+)*", line) if match.start() < end and match.end() > begin]
    return found[0].start() if found else max(at, 0)


def _right(line: str, begin: int, end: int) -> int:
    found = [match for match in re.finditer(r"\S+(?: \S+)*", line) if match.start() < end and match.end() > begin]
    return found[0].end() if found else min(end, len(line)) - 1


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []
        self._name = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "tr" and given.get("role") == "row":
            self.rows.append({})
        if tag == "td" and self.rows:
            self._name = given.get("data-name") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self._name = ""

    def handle_data(self, data: str) -> None:
        if self._name:
            self.rows[-1][self._name] = self.rows[-1].get(self._name, "") + data.strip()


def _cells_of_page(page: str) -> list[dict[str, str]]:
    parser = _Cells()
    parser.feed(page)
    return [cells for cells in parser.rows if "per call" in cells]


def _check_table(study: Study, table: list[dict[str, str]], where: str) -> None:
    shown = rows(study)
    assert len(table) == len(shown), f"{where} has {len(table)} of {len(shown)} plans"
    eager = next(cells for cells, row in zip(table, shown, strict=True) if row.trial is None)
    for cells, row in zip(table, shown, strict=True):
        _check_row(cells, row, eager, where)
    ranked = [
        read_ratio(cells["speed-up"]) for cells, row in zip(table, shown, strict=True) if row.standing == "proven"
    ]
    figures = [ratio for ratio in ranked if ratio is not None]
    assert figures == sorted(figures, reverse=True), f"{where} does not list proven plans by speed-up: {figures}"
    assert None not in ranked[: len(figures)], f"{where} ranks a plan whose speed-up is no figure"


def _check_row(cells: dict[str, str], row: Row, eager: dict[str, str], where: str) -> None:
    if row.trial is None or row.speedup is None:
        return
    ratio = read_ratio(cells["speed-up"])
    assert (ratio is not None) == row.speedup.is_usable, f"{where}: {row.name} is {cells['speed-up']!r}"
    if ratio is not None and " to " not in eager["per call"] and eager["per call"] != "–":
        told = f"{where}: {row.name} at {cells['speed-up']} of {eager['per call']} takes {cells['per call']}"
        agree(read_seconds(cells["per call"]) * ratio, read_seconds(eager["per call"]), told)
    factor = re.search(r"\(([\d,.]+)×\)", cells.get("peak memory", ""))
    if factor and eager.get("peak memory", "–") != "–":
        told = f"{where}: {row.name} needs {cells['peak memory']} of eager's {eager['peak memory']}"
        agree(read_size(cells["peak memory"]), float(factor[1]) * read_size(eager["peak memory"]), told)


def _check_json(study: Study, data: dict[str, Any]) -> None:
    if not study.eager.baseline_s:
        return
    eager = data["baseline"]["seconds_per_call"]["mid"]
    for trial in data["trials"]:
        if trial.get("measurement") and trial["measurement"]["candidate_s"]:
            agree(trial["speedup"]["mid"] * trial["seconds_per_call"]["mid"], eager, "JSON: ratio × time", 1e-9)
    if study.is_timed:
        assert data["trust"]["sentence"] == study.trust.sentence
    decision = data["decision"]
    if decision and decision["speedup"]:
        agree(decision["baseline_s"], eager, "JSON: eager's time in the decision", 1e-9)


def _check_decision(study: Study, words: str) -> None:
    """Hold savings and break-even of the sentence against the times of the table."""
    decision = study.decision
    if decision is None or decision.plan.is_eager or study.economics.baseline_s == 0:
        return
    chosen = next(row for row in rows(study) if row.is_decided)
    assert chosen.time is not None, "the decided plan has no time"
    economics, trial = study.economics, chosen.trial
    assert trial is not None
    is_figure = trial.speedup is not None and trial.speedup.is_usable
    each = economics.seconds_per_call(trial)
    call_s = each.mid if is_figure else each.high
    saved = economics.calls * (economics.baseline_s - call_s) - economics.overhead(trial)
    slack = 0.011 * economics.calls * economics.baseline_s
    for text in re.findall(
        r"saves (?:about |at least )?([\d,.]+ (?:ns|µs|ms|s|min|h|days)\b(?: [\d,.]+ (?:s|min))?)", words
    ):
        told = read_seconds(text)
        assert abs(told - saved) <= slack, f"{text} saved, where the shown times give {saved:.6g} s"
    if not is_figure:
        assert "saves about" not in words, "a saving is told as a figure where the speed-up is none"
    gain = economics.baseline_s - chosen.time.mid
    for text in re.findall(r"paid back after ([\d,]+) of", words):
        agree(float(text.replace(",", "")), max(economics.overhead(trial) / gain, 1.0), "break-even", 0.02)
