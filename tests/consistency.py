"""Checks that the figures of one output agree, read back from the text, JSON and HTML that people and programs get.

Each `check_…` takes a record and its rendered output, and raises AssertionError that names the figures.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Sequence
from html import unescape
from html.parser import HTMLParser
from operator import truediv
from typing import Any

from torchwise.records import Interval, Measurement, Study
from torchwise.records import format as show
from torchwise.records.answer import Answer, Reliability
from torchwise.records.candidates import Row, rows
from torchwise.records.explanation import Basis, Explanation, Finding, Kernel, Saving
from torchwise.records.processes import cold_speedup_across
from torchwise.report.explanation import MAX_KERNELS as SHOWN_KERNELS

UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0}
SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
ROUNDING = 0.011
"""Relative difference that two figures of three digits each may show when they are multiplied."""
SAME = 0.006
"""Largest relative difference between a figure of three digits and the unrounded figure."""
DURATION = r"(?:-?[\d,.]+ (?:ns|µs|ms|s|min|h|days)\b(?: \d+ (?:s|min)\b)?)"


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
    """Read a factor as outputs write it, "1.52× [1.49, 1.56]", or None if only the ends are told, "1.91× to 5.73×"."""
    found = re.match(r"([\d,.]+)×(?! to )", text)
    return float(found[1].replace(",", "")) if found else None


def agree(one: float, other: float, what: str, tolerance: float = ROUNDING) -> None:
    """Raise AssertionError unless two printed figures are equal within their rounding."""
    assert math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-12), f"{what}: {one:.6g} and {other:.6g} disagree"


def check_study(study: Study, text: str, page: str) -> None:
    """Check that the terminal, the JSON and the page of a study agree with each other and with themselves.

    The terminal is 300 columns wide, so that no cell folds.
    """
    _check_table(study, list(_cells_of_text(study, text)), "the terminal")
    _check_table(study, _cells_of_page(page), "the page")
    _check_json(study, study.to_dict())
    _check_decision(study, " ".join(text.replace("│", " ").split()))
    decided = next((row.trial for row in rows(study) if row.is_decided and row.trial), None)
    timed = [(study.decision.speedup, decided.processes)] if study.decision and decided else []
    for shown in (Figures("the terminal", text.replace("│", " ")), Figures("the page", page)):
        check_cold(timed, shown)
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
        if not line.strip() or line.lstrip().startswith(("Notes", "Next", "Not tried", "Why")):
            break
        cells = {
            name: line[_find_left_edge(line, begin, end) : _right(line, begin, end)].strip()
            for name, begin, end in header
        }
        if cells["per call"] and not set(line) <= set(" ─━"):
            yield {**cells, "number": str(next(numbers))}


def _find_left_edge(line: str, begin: int, end: int) -> int:
    """Return the position at which the cell over a column's name begins."""
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
        read_ratio(cells["speed-up"]) for cells, row in zip(table, shown, strict=True) if row.standing == "verified"
    ]
    figures = [ratio for ratio in ranked if ratio is not None]
    assert figures == sorted(figures, reverse=True), f"{where} does not list verified plans by speed-up: {figures}"
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
    """Check savings and break-even of the sentence against the times of the table."""
    decision = study.decision
    if decision is None or decision.plan.is_eager or study.cost_model.baseline_s == 0:
        return
    chosen = next(row for row in rows(study) if row.is_decided)
    assert chosen.time is not None, "the decided plan has no time"
    economics, trial = study.cost_model, chosen.trial
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


def check_cold(timed: Sequence[tuple[Interval | None, Sequence[Measurement]]], shown: Figures) -> None:
    """Check an output's words on cold caches against the samples, and against the figure with hot caches.

    Args:
        timed: the speed-ups for which an output may name both figures, in order, each with its measurements.
        shown: the output.
    """
    cold = [(hot, [m for m in processes if m.cold_candidate_s]) for hot, processes in timed]
    cold = [(hot, processes) for hot, processes in cold if processes]
    figures = (
        r"with hot processor caches (.{1,60}?) eager's speed, with cold caches (between \S+ and \S+×|\S+× \[[^]]*\])"
    )
    lost = r"(?:\. | )With cold caches it (may be no faster|is no faster|is slower)"
    found = re.findall(rf"{figures}(?:{lost})?", shown.text)
    assert len(found) == len(cold), f"{shown.name} names {len(found)} figures with cold caches, of {len(cold)}"
    said = shown.text.count("With cold caches")
    assert said == sum(bool(words) for _, _, words in found), (
        f"{shown.name} says more of cold caches than it has figures"
    )
    for (hot, processes), (hot_told, told, words) in zip(cold, found, strict=True):
        ratio = cold_speedup_across(processes)
        assert hot is not None
        assert ratio is not None
        assert hot_told == show.speedup(hot), f"{shown.name} has {hot_told} beside cold caches, and elsewhere {hot}"
        medians = [statistics.median(map(truediv, m.cold_baseline_s, m.cold_candidate_s)) for m in processes]
        if (figure := read_ratio(told)) is not None:
            agree(figure, statistics.geometric_mean(medians), f"{shown.name}: the speed-up with cold caches", SAME)
        expected = hot.low > 1 >= ratio.low
        assert bool(words) == expected, f"{shown.name} says of {told} with cold caches: {words!r}"
        assert not words or (ratio.high < 1) == (words == "is slower"), f"{shown.name} says of {told}: {words!r}"


class Figures:
    """The figures of one text: of a terminal, or of a page.

    Args:
        name: of the text, for messages.
        text: with line breaks wherever they are, or HTML.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        if text.lstrip().startswith("<"):
            text = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", text, flags=re.DOTALL)
            text = unescape(re.sub(r"<[^>]+>", " ", text))
        self.text = re.sub(r"\s+", " ", text).replace("[ ", "[").replace(" ]", "]")

    def check_says(self, words: str, times: int | None = None) -> None:
        """Fail unless the text says these words so many times, or at least once for None."""
        found = self.text.count(_flat(words))
        wanted = found > 0 if times is None else found == times
        assert wanted, f"{self.name} says {words!r} {found} times, not {times or 'once at least'}"

    def check_seconds(self, pattern: str, *values: float) -> None:
        """Fail unless the durations in the pattern's groups are these."""
        for shown, value in zip(self._groups(pattern), values, strict=True):
            agree(
                read_seconds(shown),
                value,
                f"{self.name} says {shown} ({pattern}), which the record has otherwise",
                SAME,
            )

    def check_ratios(self, pattern: str, *values: float) -> None:
        """Fail unless the numbers in the pattern's groups are these."""
        for shown, value in zip(self._groups(pattern), values, strict=True):
            agree(float(shown.replace(",", "")), value, f"{self.name} says {shown} ({pattern}), not the record's", SAME)

    def _groups(self, pattern: str) -> Sequence[str]:
        hit = re.search(pattern, self.text)
        assert hit, f"{self.name} does not say {pattern!r}"
        return hit.groups()


def check_explanation(record: Explanation, text: str, html: str) -> None:
    """Fail if figures of one explanation disagree, in the record, its JSON, on the terminal or on the page.

    The terminal is wide enough that no kernel's name folds.
    """
    assert Explanation.from_json(record.to_json()) == record, "the JSON is not the record"
    call_s = record.execution.call_s.mid
    _check_savings(record, call_s)
    _check_order(record)
    _check_kernels(record, call_s)
    _check_advice(record)
    for shown in (Figures("the terminal", text), Figures("the page", html)):
        _check_headline(record, shown)
        for number, finding in enumerate(record.findings, 1):
            _check_finding(finding, f"{number}. {finding.title}", shown, call_s)
        _check_trust(record, shown)
        for kernel in record.kernels[:SHOWN_KERNELS]:
            _check_kernel(kernel, shown)


def _check_savings(record: Explanation, call_s: float) -> None:
    for name, price in _prices(record):
        saved = price.per_call_s
        assert saved.low <= saved.mid <= saved.high, f"{name}: {saved} is not in order"
        costs = price.basis is Basis.MEASURED and saved.high < 0
        within = saved.low >= 0 and saved.high <= call_s * (1 + 1e-9)
        assert costs or within, f"{name}: a saving of {saved} s is not within 0 and the call's {call_s:.3g} s"


def _prices(record: Explanation) -> Iterator[tuple[str, Saving]]:
    for finding in record.findings:
        if finding.saving:
            yield finding.title, finding.saving
        for tried in finding.tried:
            if tried.saving:
                yield tried.fix, tried.saving


def _check_order(record: Explanation) -> None:
    """Largest saving first, unknown savings last."""
    calls = record.workload.calls
    known = [one.saving is not None and one.saving.is_ranked for one in record.findings]
    assert known == sorted(known, reverse=True), "a finding whose saving is not known stands before one that is"
    saved = [one.saving.average_saving_s(calls) for one in record.findings if one.saving and one.saving.is_ranked]
    assert saved == sorted(saved, reverse=True), f"findings are not in the order of their savings: {saved}"
    if not record.is_ranked:
        assert all(price.answer is Answer.INCONCLUSIVE for _, price in _prices(record)), "savings of an unusable time"


def _check_kernels(record: Explanation, call_s: float) -> None:
    seen, total = record.execution, sum(kernel.seconds for kernel in record.kernels)
    assert total <= call_s * (1 + 1e-9), f"kernels take {total:.3g} s together, the call {call_s:.3g} s"
    assert seen.busy_s <= call_s * (1 + 1e-9), f"a kernel runs for {seen.busy_s:.3g} s of the call's {call_s:.3g} s"
    if record.kernels:
        agree(total, seen.busy_s, "the sum of the kernels, and the time in which one runs", 1e-6)
    agree(seen.host_share * call_s + seen.busy_s, call_s, "kernels and host together, and the call", 1e-6)
    for kernel in record.kernels:
        work = (kernel.nbytes, kernel.flops)
        assert kernel.share is None or None not in work, f"{kernel.name} has a roofline share, of work {work}"
        assert kernel.share is None or 0 <= kernel.share <= 1, f"{kernel.name} reaches {kernel.share:.0%}"
        assert kernel.share is None or not seen.is_rough, f"{kernel.name} has a share of a rough profile"


def _check_advice(record: Explanation) -> None:
    """No recommendation was timed without a gain."""
    for one in record.findings:
        price = one.saving
        if price and price.basis is not Basis.ESTIMATED and price.answer is not Answer.YES and not price.once_s:
            withheld = one.fix.startswith(("Not recommended", "Tried, and no saving"))
            assert withheld, f"{one.title}: its saving is {price.answer}, but it is advised to {one.fix}"
        for tried in one.tried:
            known = tried.saving is None or tried.saving.answer is Answer.YES or tried.saving.once_s
            assert known or not tried.helps, f"{tried.fix} is said to help, without a gain"


def _check_headline(record: Explanation, shown: Figures) -> None:
    seen, speedup = record.execution, record.measurement.speedup
    if seen.call_s.is_usable:
        shown.check_seconds(rf": ({DURATION}) per call, ", seen.call_s.mid)
    else:
        shown.check_seconds(rf": ({DURATION}) to ({DURATION}) per call, ", seen.call_s.low, seen.call_s.high)
    shown.check_seconds(rf"Kernels run for ({DURATION}) of the ({DURATION}) of a call", seen.busy_s, seen.call_s.mid)
    if speedup.is_usable:
        shown.check_ratios(r"per call, ([\d,.]+)×(?! to )", speedup.mid)
    else:
        shown.check_ratios(r"per call, ([\d,.]+)× to ([\d,.]+)× eager", speedup.low, speedup.high)


def _check_finding(finding: Finding, title: str, shown: Figures, call_s: float) -> None:
    shown.check_says(title)
    if finding.saving is None:
        return
    after = re.escape(_flat(title)) + r" "
    saved, price = finding.saving.per_call_s, finding.saving
    if price.answer is Answer.INCONCLUSIVE:
        shown.check_says(f"{_flat(title)} could not be measured" if not price.once_s else "could not be measured")
    elif saved.low > 0:
        pattern = rf"saves ({DURATION}) per call \[({DURATION}), ({DURATION})\]"
        shown.check_seconds(after + pattern, saved.mid, saved.low, saved.high)
    elif saved.high < 0:
        pattern = rf"costs ({DURATION}) per call \[({DURATION}), ({DURATION})\]"
        shown.check_seconds(after + pattern, -saved.mid, -saved.high, -saved.low)
    elif saved.high > 0:
        shown.check_seconds(after + rf"saves (?:nothing measurable: )?at most ({DURATION}) per call", saved.high)
    for most in re.findall(rf"saves (?:nothing measurable: )?(?:at most )?({DURATION}) per call", shown.text):
        assert read_seconds(most) <= call_s * (1 + SAME), f"{shown.name}: {most} saved of a call of {call_s:.3g} s"


def _check_trust(record: Explanation, shown: Figures) -> None:
    """A sentence at the top says how far the explanation can be trusted, and nothing repeats it."""
    assert record.trust, "nothing says how far it can be trusted"
    shown.check_says(record.trust.sentence, times=1)
    assert shown.text.index(_flat(record.trust.sentence)) < shown.text.index("Stages"), "it is not said at the top"
    for note in record.measurement.notes:
        within = _flat(note) in _flat(record.trust.sentence)
        shown.check_says(note, times=int(within))
    if record.trust.reliability is Reliability.UNUSABLE:
        assert "largest" not in shown.text, f"{shown.name} ranks what was not timed"


def _check_kernel(kernel: Kernel, shown: Figures) -> None:
    """Check a row of the table against its kernel: its calls, its time, and its share of the roofline."""
    row = (
        re.escape(_flat(kernel.name)) + rf" ([\d.,]+) ({DURATION}) (?:–|[\d.,]+ \w+) (?:–|0|[\d.,]+ M) ([\d.]+|unknown)"
    )
    hit = re.search(row, shown.text)
    assert hit, f"{shown.name} has no row for {kernel.name}"
    agree(float(hit[1].replace(",", "")), kernel.calls, f"{shown.name}: calls of {kernel.name}", SAME)
    agree(read_seconds(hit[2]), kernel.seconds, f"{shown.name}: the time of {kernel.name}", SAME)
    share = None if hit[3] == "unknown" else float(hit[3]) / 100
    is_same = (
        share == kernel.share if None in (share, kernel.share) else abs((share or 0) - (kernel.share or 0)) <= 0.006
    )
    assert is_same, f"{shown.name}: {kernel.name} reaches {hit[3]} %, the record says {kernel.share}"


def _flat(text: str) -> str:
    return " ".join(text.split())
