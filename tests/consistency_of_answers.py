"""Checks that the figures of one benchmark, comparison, check or analysis agree, as `consistency.py` does."""

from __future__ import annotations

import math
import re
from html import unescape

from consistency import Figures, agree, check_cold, read_ratio, read_seconds, read_size
from torchwise.records import format as show
from torchwise.records.analysis import Analysis
from torchwise.records.answer import Answer, Change, all_of, exceeds
from torchwise.records.benchmark import Benchmark, Row
from torchwise.records.comparison import Comparison
from torchwise.records.scale import scale_of, trust_of
from torchwise.report.analysis import phases
from torchwise.study.lock.check_results import Check, State

Cells = dict[str, str]
BENCH = ("contender", "per call", "speed-up", "cold", "warm", "peak memory", "roofline", "precision", "answers")


def check_benchmark(benchmark: Benchmark, text: str, markdown: str, page: str) -> None:
    """Check the terminal (300 columns), the Markdown and the page of a benchmark against each other and themselves."""
    trust = trust_of(benchmark).sentence
    assert text.startswith(trust), f"the terminal does not begin with {trust!r}"
    for where, said in (("Markdown", markdown), ("the page", page)):
        assert trust in unescape(said.replace("\\", "")), f"{where} does not say {trust!r}"
    count = len(benchmark.rows)
    for where, table in (("the terminal", _bench_text(text)), ("Markdown", _bench_markdown(markdown))):
        assert len(table) == count, f"{where} has {len(table)} of {count} rows"
        for workload in benchmark.workloads:
            rows_of = [cells for cells, row in zip(table, benchmark.rows, strict=True) if row.workload == workload]
            _check_target(rows_of, where)
        _check_means(table, text)
    starred = sum("★" in cells["contender"] for cells in _bench_text(text))
    assert page.count('class="decided"') == starred, "the page marks other rows than the terminal"
    for row in benchmark.rows:
        _check_duel(row, benchmark, text)
    scaled = [scale_of(benchmark, row.workload).find_scaled(row) for row in benchmark.rows]
    timed = [(one.speedup, one.row.performance.processes) for one in scaled if one and one.row.performance]
    unfolded = re.sub(r"<summary>.*?</summary>", " ", page)  # summaries repeat the details below them
    for where, said in (("the terminal", text), ("Markdown", markdown.replace("\\", "")), ("the page", unfolded)):
        check_cold(timed, Figures(where, said))
    assert "mean of 1 " not in text + markdown + page, "a geometric mean of one row is none"


def _bench_text(text: str) -> list[Cells]:
    split = (re.split(r"\s{2,}", line.strip()) for line in text.splitlines())
    return [
        dict(zip(BENCH, cells, strict=True)) for cells in split if len(cells) == len(BENCH) and cells[0] != BENCH[0]
    ]


def _bench_markdown(text: str) -> list[Cells]:
    names = ("contender", "precision", "per call", "speed-up", "cold", "warm", "peak memory", "roofline", "answers")
    split = ([cell.strip() for cell in line.replace("\\", "").strip("|").split("|")] for line in text.splitlines())
    found = [dict(zip(names, cells, strict=True)) for cells in split if len(cells) == len(names)]
    return [cells for cells in found if cells["contender"] != "contender" and not set(cells["contender"]) <= set("-:")]


def _check_target(table: list[Cells], where: str) -> None:
    eager = next((cells for cells in table if cells["contender"].split()[0] == "eager"), None)
    for cells in table:
        ratio, told = read_ratio(cells["speed-up"]), f"{where}: {cells}"
        if ratio is None:
            assert "★" not in cells["contender"], f"{told} has a star and no figure"
        elif eager is not None and eager["per call"] != "–":
            agree(read_seconds(cells["per call"]) * ratio, read_seconds(eager["per call"]), told)
        factor = re.search(r"\(([\d,.]+)×\)", cells["peak memory"])
        if factor and eager is not None and eager["peak memory"] != "–":
            agree(read_size(cells["peak memory"]), float(factor[1]) * read_size(eager["peak memory"]), told)
    for best in [cells for cells in table if "★" in cells["contender"]]:
        rivals = [c for c in table if c["precision"] == best["precision"] and c["answers"].startswith("passed")]
        for other in rivals:
            one, its = read_ratio(best["speed-up"]), read_ratio(other["speed-up"])
            assert one is not None
            assert its is None or one >= its, f"{where}: {best} has the star, and {other} is faster"
            if its is not None:
                assert read_seconds(best["per call"]) <= read_seconds(other["per call"]), f"{where}: {best}, {other}"


def _check_means(table: list[Cells], text: str) -> None:
    for name, ratio, count in re.findall(
        r"^ *(\S+) over eager: ([\d,.]+)×, geometric mean of (\d+) targets", text, re.M
    ):
        own = [c for c in table if c["contender"].split()[0] == name and c["answers"].startswith("passed")]
        ratios = [found for c in own if (found := read_ratio(c["speed-up"])) is not None]
        assert len(ratios) == int(count), f"{name}: a mean of {count} targets, and {len(ratios)} have a figure"
        agree(float(ratio), math.exp(sum(map(math.log, ratios)) / len(ratios)), f"the geometric mean of {name}")


def _check_duel(row: Row, benchmark: Benchmark, text: str) -> None:
    scale = scale_of(benchmark, row.workload)
    rival = next((one for one in scale.rows if one.row.contender == row.rival and one.row.is_right), None)
    ours = scale.find_scaled(row)
    if row.duel is None or not row.is_right or rival is None or ours is None or not row.speed_over_rival.is_usable:
        return
    if row.rival == "eager":  # the row itself says how the two compare
        assert (ours.is_surely_faster is Answer.INCONCLUSIVE) == (f"{row.contender}: inconclusive" in text)
        return
    assert show.speedup(row.speed_over_rival) in " ".join(text.split())
    if ours.speedup.is_usable and rival.speedup.is_usable:
        agree(ours.speedup.mid / rival.speedup.mid, row.speed_over_rival.mid, f"the duel with {row.rival}")


def check_comparison(comparison: Comparison, text: str) -> None:
    """Check a comparison's terminal output (300 columns) against itself: ratios, counts, and rows called the same."""
    lines = text.splitlines()
    assert comparison.trust is not None
    assert lines[0].strip() == comparison.trust.sentence, "the terminal does not begin with how far to trust it"
    figures = r"from ([\d,.]+)× \[[^]]*\] in A to ([\d,.]+)× \["
    for line in lines:
        if told := re.search(r"its speed-up over eager by ([\d,.]+)× \[[^]]*\], " + figures, line):
            ratio, before, after = (float(found.replace(",", "")) for found in told.groups())
            agree(ratio, after / before, line)
    for row in comparison.rows:
        if row.change is Change.SAME and row.time and row.contender != "eager":
            told = (row.time, row.speedup)
            is_told = any(one and one.half_width < 0.25 for one in told)
            assert is_told, f"{row.contender} is the same by {row.time} and {row.speedup}"
    untold = any(row.change is Change.INCONCLUSIVE and row.contender != "eager" for row in comparison.rows)
    if untold:
        assert comparison.exit_code, "something cannot be told, and the exit code is 0"
        assert "no regression" not in lines[-1], lines[-1]


def check_lock_check(check: Check, text: str) -> None:
    """Check a check's terminal output against itself: it must name the targets that are as locked."""
    if check.trust is not None:
        assert text.strip().startswith(check.trust.sentence), "the terminal does not begin with how far to trust it"
    pattern = r"changed by ([\d,.]+)× \[[^]]*\], from ([\d,.]+)× \[[^]]*\] when locked to ([\d,.]+)× \[[^]]*\] now"
    for ratio, locked, now in re.findall(pattern, text):
        agree(float(now) / float(locked), float(ratio), "the speed-up now over the one that is locked")
    for row in check.rows:
        assert row.found is None or show.speedup(row.found) in row.detail, f"{row.found} was found, and {row.detail}"
        if row.state is not State.GOOD or row.speedup is None:
            continue
        slower = exceeds(row.speedup.inverse, 1 + check.threshold)
        longer = exceeds(row.time, 1 + check.threshold) if row.time else Answer.YES
        assert all_of(slower, longer) is Answer.NO, f"as locked by {row.speedup} the speed-up and {row.time} the time"
    if check.select_rows(State.INCONCLUSIVE):
        assert check.exit_code, "something cannot be told, and the exit code is 0"
        assert "The lock is valid" not in text


def check_analysis(analysis: Analysis, text: str, page: str = "") -> None:
    """Check an analysis' terminal output (300 columns) and page against themselves.

    All figures must follow from one baseline.
    """
    trust = analysis.judge_trust().sentence
    assert text.startswith(trust), f"the terminal does not begin with {trust!r}"
    assert not page or trust in unescape(page), f"the page does not say {trust!r}"
    facts = {name: value for phase in phases(analysis) for name, value in phase.facts}
    for name, value in facts.items():
        assert value in text, f"the terminal does not say {name}: {value}"
    if goes := facts.get("Time by kind of operation"):
        total = sum(float(share) for share in re.findall(r"([\d.]+) %", goes))
        assert total <= 101, f"shares of one call add up to {total} %: {goes}"
    tables = {phase.key: phase.table.lines for phase in phases(analysis) if phase.table}
    eager_s = read_seconds(dict(phases(analysis)[0].facts)["Per call"])
    if analysis.calls:
        agree(read_seconds(tables["speed"][1][2]), eager_s, "eager's time, call by call and in the baseline")
    _check_plan_of(analysis, facts, tables, eager_s)
    for line in tables.get("scaling", ()):
        if line[1] != "–" and (ratio := read_ratio(line[5])) is not None:
            agree(read_seconds(line[1]) * ratio, read_seconds(line[3]), f"batch {line[0]}")
            agree(float(line[2].replace(",", "")) * read_seconds(line[1]), float(line[0]), f"items of batch {line[0]}")
        if line[0] == str(analysis.batch_size) and analysis.speedup:
            agree(read_seconds(line[3]), eager_s, "eager at the size of the inputs")
    if analysis.answer is Answer.INCONCLUSIVE:
        assert len(analysis.advice) == 1, "advice from what cannot be told"
        assert analysis.advice[0].text.startswith("Inconclusive")
        assert not page or 'class="decision none"' in page, "a green box around what cannot be told"


def _check_plan_of(
    analysis: Analysis, facts: Cells, tables: dict[str, tuple[tuple[str, ...], ...]], eager_s: float
) -> None:
    """Check the plan's costs, its savings, and the number of calls after which it pays."""
    ratio = read_ratio(facts.get("Speed-up over eager", ""))
    if ratio is None:
        assert "Saved per call" not in facts, "a saving is told as a figure where the speed-up is none"
        return
    own_s = read_seconds(next(value for name, value in phases(analysis)[2].facts if name == "Per call"))
    agree(own_s * ratio, eager_s, "the plan's time and its speed-up")
    if analysis.calls:
        agree(read_seconds(tables["speed"][0][2]), own_s, "the plan's time, call by call and on the whole")
    if "Saved per call" not in facts or analysis.plan.is_eager:
        return
    saved, slack = analysis.cost_model.baseline_s - own_s, 0.011 * eager_s
    assert abs(read_seconds(facts["Saved per call"]) - saved) <= slack, (
        f"{facts['Saved per call']} of {eager_s} - {own_s}"
    )
    for calls, eager, _ in tables.get("economics", ()):
        agree(read_seconds(eager), float(calls.replace(",", "")) * eager_s, f"eager after {calls} calls")
    if (after := re.match(r"([\d,]+) calls", facts["Pays back after"])) and analysis.answer is Answer.YES:
        assert f"after {after[1]} calls" in analysis.advice[0].text, "two break-evens on one page"
