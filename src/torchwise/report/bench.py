"""A benchmark on a terminal and as a page, each target with its contenders, and the comparison of two benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Outcome
from torchwise.records import format as show
from torchwise.records.answer import Answer, Change, Reliability
from torchwise.records.benchmark import EAGER, PERMITTED, TORCHWISE, Benchmark, Row, RowState
from torchwise.records.comparison import Comparison, RowComparison
from torchwise.records.scale import Scale, ScaledRow, scale_of, trust_of
from torchwise.records.suite_summary import describe_summary, summarize, why_no_duel
from torchwise.report import document as doc
from torchwise.report.facts import environment_section, hot_and_cold, name_report, place, when
from torchwise.report.html import Theme, render_page, render_part
from torchwise.report.terminal import render_terminal

WIDE, MEDIUM = 124, 80
"""Widths of a terminal from which the table has every figure, and from which it has all except costs and memory."""
COLUMNS = (
    doc.Column("contender", is_wrapped=True),
    doc.Column("per call", is_figure=True, least_width=MEDIUM),
    doc.speedup_column(),
    doc.Column("cold", is_figure=True, least_width=MEDIUM),
    doc.Column("warm", is_figure=True, least_width=WIDE),
    doc.Column("peak memory", is_figure=True, least_width=WIDE),
    doc.Column("roofline", is_figure=True, least_width=WIDE),
    doc.Column("precision", least_width=WIDE),
    doc.Column("answers", is_wrapped=True),
)
COMPARE = doc.Step(
    "torchwise compare BEFORE.json AFTER.json", "finds regressions between two runs with --export FILE.json"
)
NOTHING = "No row is finished yet."


def render_benchmark(benchmark: Benchmark, next_commands: Sequence[str] = ()) -> RenderableType:
    """Return a benchmark for a terminal: the machine, every target, the summary, and the next commands."""
    return render_terminal(_bench_document(benchmark, [doc.Step(command, "") for command in next_commands]))


def render_bench_html(benchmark: Benchmark) -> str:
    """Return a benchmark as a page. The same benchmark always gives the same page."""
    from torchwise.report.plots.bench import plots

    return render_page(_bench_document(benchmark, [COMPARE], plots(benchmark)))


def render_bench_part(benchmark: Benchmark, theme: Theme) -> str:
    """Return a benchmark as a part of a page. See `render_part`."""
    from torchwise.report.plots.bench import plots

    return render_part(_bench_document(benchmark, [COMPARE], plots(benchmark)), theme)


def describe_machine(benchmark: Benchmark) -> str:
    """Return machine, date and hardware peaks, in a line."""
    words = [when(benchmark.created_at)]
    if peaks := benchmark.peaks:
        words.append(f"copies {show.three(peaks.bandwidth / 1e9)} GB/s")
        words += [f"{name} {show.three(rate / 1e12)} TFLOP/s" for name, rate in peaks.flops.items()]
    return place(benchmark.environment, *words)


def _bench_document(benchmark: Benchmark, steps: Sequence[doc.Step], plots: Sequence[doc.Plot] = ()) -> doc.Document:
    """Return a benchmark as a document. The summary is first on a page, and last on a terminal, where it stays seen."""
    found, targets = describe_summary(summarize(benchmark)), blocks(benchmark)
    trust = trust_of(benchmark) if benchmark.rows else None
    is_reliable = trust is not None and trust.reliability is not Reliability.UNUSABLE
    head, *rest = found or ["No row was timed." if benchmark.rows else NOTHING]
    panel = doc.Panel(
        "Summary", head, (doc.Items(tuple(rest)),) if rest else (), doc.Tone.GOOD if is_reliable else doc.Tone.MUTED
    )
    ending: tuple[doc.Block, ...] = (
        *([doc.Text(NOTHING, tone=doc.Tone.STRONG)] if not benchmark.rows else []),
        *([doc.Section("Summary", (doc.Items(tuple(found)),))] if found else []),
    )
    tables = [doc.Table(one.title, COLUMNS, tuple(map(_bench_row, one.lines)), one.note) for one in targets]
    machine = describe_machine(benchmark)
    return doc.Document(
        title=f"{show.pluralize(len(targets), 'target')}, side by side",
        brand=name_report("benchmark", benchmark.created_at),
        subtitles=(machine,),
        blocks=(
            *([doc.trust_text(trust)] if trust else []),
            doc.Only(doc.Medium.TERMINAL, (doc.Text(machine, tone=doc.Tone.MUTED),)),
            doc.Only(doc.Medium.PAGE, (panel,)),
            *doc.plot_section(plots),
            *(doc.Section(table.caption, (table,)) for table in tables),
            *([doc.Text(LEGEND, tone=doc.Tone.MUTED)] if benchmark.rows else []),
            doc.Only(doc.Medium.TERMINAL, ending),
            *([doc.Section("Next", (doc.Commands(tuple(steps)),))] if steps else []),
            doc.Only(doc.Medium.PAGE, (environment_section(benchmark.environment),)),
        ),
    )


def _bench_row(line: Line) -> doc.Row:
    answers = doc.Tone.GOOD if line.row.is_right else doc.Tone.BAD if line.is_wrong else doc.Tone.WARNING
    cells = (
        line.name,
        line.time,
        doc.Cell(line.speedup, doc.Tone.WARNING if line.is_inconclusive and line.row.is_right else doc.Tone.PLAIN),
        line.cold,
        line.warm,
        line.memory,
        line.roofline,
        doc.Cell(line.precision, note="" if line.precision == "native" else f"in {line.precision}"),
        doc.Cell(line.answers, answers),
    )
    tone = doc.Tone.GOOD if line.is_best else doc.Tone.PLAIN if line.row.is_right else doc.Tone.MUTED
    return doc.Row(cells, tone, line.contender, tuple(line.remarks))


BEST = "★"
LEGEND = (
    f"{BEST}: the fastest contender with correct answers at its level, if the measurements show it. "
    "Speed-up: over eager, with its 95 % interval over all processes that timed the two in alternation. Per call: "
    "eager's time divided by the speed-up. Cold and warm: extra time of the first call, with empty and full caches. "
    "Roofline: the minimum time for the work on this hardware, divided by the measured time."
)


@dataclass(frozen=True, slots=True)
class Line:
    """One contender on one target, as text.

    Attributes:
        is_best: whether it is the fastest with correct answers at its level.
        why: reason for the answers' state, unless they passed.
        choice: for Torchwise its plan, the seconds of search, and its speed against the best alternative.
        search: for Torchwise, if another contender is faster, the outcome of every plan that it could have chosen.
        doubts: warnings, and any duel other than the one shown.
        caches: its speed-up with hot and with cold processor caches, if timed with both, or why it was not.
        is_inconclusive: whether the measurements cannot tell if it is faster than eager.
    """

    row: Row
    is_best: bool
    contender: str
    precision: str
    time: str
    speedup: str
    cold: str
    warm: str
    memory: str
    roofline: str
    answers: str
    why: str = ""
    choice: str = ""
    search: str = ""
    doubts: str = ""
    caches: str = ""
    is_inconclusive: bool = False

    @property
    def remarks(self) -> list[str]:
        """Remarks to show below the table, a line each."""
        return [text for text in (self.why, self.choice, self.caches, self.search, self.doubts) if text]

    @property
    def is_wrong(self) -> bool:
        """Whether it failed, or its answers did. It may also be missing, or not comparable."""
        if not self.row.is_timed or self.row.performance is None:
            return self.row.state is RowState.FAILED
        return self.row.performance.verdict.outcome is Outcome.FAIL

    @property
    def name(self) -> str:
        """The contender, marked if it is the best."""
        return f"{self.contender} {BEST}" if self.is_best else self.contender


@dataclass(frozen=True, slots=True)
class TargetLines:
    """One target with its lines, in the order in which they ran.

    The note says so if several contenders are correct and none is clearly the fastest.
    """

    workload: WorkloadSpec
    lines: tuple[Line, ...]
    note: str = ""

    @property
    def title(self) -> str:
        """The target, and the purpose of the run."""
        work = self.workload
        return f"{show.one_line(work.target)}, {work.mode} on {work.device}, for {work.objective}"


def blocks(benchmark: Benchmark) -> list[TargetLines]:
    """Return the targets of a benchmark, in order."""
    return [_lines_of(benchmark, workload) for workload in benchmark.workloads]


def line_of(row: Row, benchmark: Benchmark, *, is_best: bool = False) -> Line:
    """Return a row as text."""
    costs = row.performance.costs if row.performance else None
    scale = scale_of(benchmark, row.workload)
    scaled = scale.find_scaled(row)
    answers, why = row.answers
    return Line(
        row,
        is_best,
        contender=show.one_line(row.contender),
        precision=show.one_line(row.precision),
        time=show.time(scaled.time if scaled else None),
        speedup=_speedup(scaled),
        cold=show.seconds(costs.cold_s if costs else None),
        warm=show.seconds(costs.warm_s if costs else None),
        memory=_memory(row, scale),
        roofline=show.percent(scaled.roofline_share(benchmark.peaks) if scaled else None),
        answers=answers,
        why=show.one_line(why),
        choice=show.one_line(_choice(row, scale)) if row.contender == TORCHWISE else "",
        search=show.one_line(_search(row)),
        doubts=show.one_line("; ".join(_doubts(row, scaled))),
        caches=show.one_line(_caches(row, scaled)),
        is_inconclusive=scaled is not None and scaled.is_inconclusive,
    )


def duel_words(row: Row, scale: Scale) -> str:
    """Compare Torchwise with the fastest alternative of its level, or explain why that is impossible."""
    ratio = scale.duel_ratio(row)
    if ratio is not None and row.is_right:
        same = ", the same plan" if row.is_its_rival else ""
        prefix = "inconclusive: " if scale.duel_answer(row) is Answer.INCONCLUSIVE else ""
        return f"{prefix}{show.speedup(ratio)} the speed of {_name_rival(row, scale)} ({row.rival}{same})"
    return why_no_duel(row)


def _name_rival(row: Row, scale: Scale) -> str:
    rival = next((one.row for one in scale.rows if one.row.contender == row.rival and one.row.is_right), None)
    return "another contender" if rival is not None and not scale.leads_others(rival, row) else "the best alternative"


def _lines_of(benchmark: Benchmark, workload: WorkloadSpec) -> TargetLines:
    rows = benchmark.select_rows(workload)
    best = list(scale_of(benchmark, workload).best().values())
    lines = tuple(line_of(row, benchmark, is_best=any(row is found for found in best)) for row in rows)
    several = sum(row.is_right and row.level in ("native", PERMITTED) for row in rows) > 1
    is_undecided = several and not any(row.level in ("native", PERMITTED) for row in best)
    return TargetLines(workload, lines, "No contender is clearly the fastest." if is_undecided else "")


def _speedup(scaled: ScaledRow | None) -> str:
    if scaled is not None and scaled.row.contender == EAGER:
        return "1×"
    return show.speedup(scaled.speedup if scaled else None)


def _memory(row: Row, scale: Scale) -> str:
    peak = row.performance.costs.peak_memory if row.performance else None
    if peak is None or row.contender == EAGER:
        return show.size(peak if peak is None else scale.eager_memory)
    return show.size(peak) + (f" ({show.ratio(peak / scale.eager_memory)})" if scale.eager_memory else "")


def _doubts(row: Row, scaled: ScaledRow | None) -> list[str]:
    failed = [row.reason] if row.duel and row.is_timed and row.reason else []  # of a duel other than the one shown
    if scaled is None or not scaled.is_inconclusive:
        return failed
    if row.contender == EAGER:
        return [f"inconclusive: eager timed against itself had {show.speedup(row.speedup)} its own speed", *failed]
    return [f"inconclusive: {show.speedup(scaled.speedup)} eager's speed, so it may be slower or faster", *failed]


def _caches(row: Row, scaled: ScaledRow | None) -> str:
    """Return the speed-ups with hot and cold caches, or why there are none, or nothing if they were not requested."""
    if scaled is not None and row.cold_speedup:
        return ". ".join(hot_and_cold(scaled.speedup, row.cold_speedup))
    return next((one.not_cold for one in row.measurements if one.not_cold), "")


def _search(row: Row) -> str:
    """List the tried and the excluded plans if an alternative is clearly faster, as one of them has the reason."""
    ratio = row.speed_over_rival
    if ratio is None or ratio.high >= 1 or row.is_its_rival or not row.searched:
        return ""
    return f"tried and excluded plans: {'; '.join(row.searched)}"


def _choice(row: Row, scale: Scale) -> str:
    words = [f"plan {row.plan}"] if row.plan else []
    if row.plan:
        words += ["given by the request" if row.search_s is None else f"searched {show.seconds(row.search_s)}"]
    return ", ".join([*words, *filter(None, [duel_words(row, scale)])])


TITLES = {
    Change.SLOWER: "Slower",
    Change.WRONG: "No longer correct",
    Change.LOST: "Lost: timed in A, but not in B",
    Change.INCONCLUSIVE: "Inconclusive: the measurements cannot tell whether it changed",
    Change.FASTER: "Faster",
    Change.RIGHT: "Correct now",
    Change.GAINED: "Gained: timed in B, but not in A",
    Change.DRIFT: "Drift of eager, by the machine or eager itself: no regression",
    Change.NOT_COMPARED: "Not compared",
}
"""Headings in display order. Unchanged rows are only counted."""
OUTCOMES = {
    Answer.YES: ("B has regressions", doc.Tone.BAD),
    Answer.NO: ("B has no regression", doc.Tone.GOOD),
    Answer.INCONCLUSIVE: ("Inconclusive: the measurements cannot tell whether B has regressions", doc.Tone.WARNING),
}


def render_comparison(comparison: Comparison) -> RenderableType:
    """Return a comparison for a terminal."""
    return render_terminal(comparison_document(comparison))


def comparison_document(comparison: Comparison) -> doc.Document:
    """Return the report on a comparison. The sentence with the counts comes last, where a log ends."""
    differences = doc.Section(
        "A and B ran in different environments, which may cause changes:",
        (doc.Items(comparison.differences),),
        doc.Tone.WARNING,
    )
    found = ((change, comparison.select_rows(change)) for change in TITLES)
    blocks: tuple[doc.Block, ...] = (
        *([doc.trust_text(comparison.trust)] if comparison.trust else []),
        *([differences] if comparison.differences else []),
        *(
            doc.Section(TITLES[change], (doc.Items(tuple(map(_describe_row, rows))),), doc.change_tone(change))
            for change, rows in found
            if rows
        ),
        doc.Text(sentence(comparison), tone=OUTCOMES[comparison.regressed][1]),
    )
    return doc.Document("Comparison of two benchmarks", blocks)


def sentence(comparison: Comparison) -> str:
    """Return the outcome in a sentence."""
    counts = [f"{len(found)} {change}" for change in Change if (found := comparison.select_rows(change))]
    return f"{OUTCOMES[comparison.regressed][0]}, beyond {show.percent(comparison.threshold)}: {', '.join(counts)}."


def _describe_row(row: RowComparison) -> str:
    return f"{show.one_line(row.target)} ({row.mode} on {row.device}), {show.one_line(row.contender)}: {row.detail}"
