"""The output of an analysis: the advice first, every phase with its figures, on any width, and as a page."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
from rich.console import Console

from analysis_samples import CRASH, HANG, a_batch, a_steady, an_analysis
from builders import a_failure, a_measurement, a_plan, a_trial, an_inspection
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records.analysis import Advice, Analysis, Batch, Consistency, Memory
from torchwise.report.analysis import next_steps, notes, phases, render_analysis, render_analysis_html
from torchwise.report.plots.analysis import plots

HOSTILE = "\"'><script>alert(1)</script>\x1b[31m{{ 7*7 }}\u202e</style>\x00"


def make_failed_analysis() -> Analysis:
    return an_analysis(trial=a_failure(traceback="Traceback: here"), steady=None, batches=())


def render_text(analysis: Analysis, width: int = 120) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"), highlight=False)  # noqa: SIM115
    console.print(render_analysis(analysis))
    return console.export_text()


def facts_of(analysis: Analysis, key: str) -> dict[str, str]:
    return dict(next(phase for phase in phases(analysis) if phase.key == key).facts)


def test_the_phases_come_in_order_with_their_figures() -> None:
    found = {phase.key: phase for phase in phases(an_analysis())}
    assert list(found) == ["baseline", "compiling", "speed", "economics", "memory", "correctness", "scaling"]
    compiling = facts_of(an_analysis(), "compiling")
    assert (compiling["Cold, empty caches"], compiling["Warm, full caches"]) == ("38.2 s", "4.10 s")
    memory = facts_of(an_analysis(), "memory")
    assert (memory["More than eager"], memory["Memory to reserve, 20 % margin"]) == ("+32.0 MiB", "560 MiB")
    economics = facts_of(an_analysis(), "economics")
    assert economics["Pays back after"].endswith(" calls")
    assert facts_of(an_analysis(), "correctness")["Error against float64"] == "2.1e-07"


def test_a_consistency_row_holds_calls_percentiles_variation_drift_and_outliers() -> None:
    table = next(phase.table for phase in phases(an_analysis()) if phase.key == "speed")
    assert table is not None
    assert table.header == ("", "calls", "p50", "p95", "p99", "mean", "variation", "drift", "outliers")
    (name, calls, p50, *_, drift, outliers), (other, *_) = table.lines
    assert (name, other, calls) == ("inductor", "eager", "400")
    assert p50.startswith("8.2")
    assert re.fullmatch(r"[+-]\d+\.\d %", drift)
    assert outliers.isdigit()
    slowed = replace(a_steady(), plan=Consistency((1.0,) * 10 + (364.0,) * 5))
    table = next(phase.table for phase in phases(an_analysis(steady=slowed)) if phase.key == "speed")
    assert table is not None
    assert table.lines[0][-2] == "364×"


def test_a_plan_needing_less_memory_shows_it() -> None:
    less = an_analysis(steady=a_steady(memory=Memory(1, 1, None, 100 << 20, 300 << 20)))
    assert facts_of(less, "memory")["More than eager"] == "-200 MiB"


def test_batches_that_were_not_timed_are_named_with_the_reason() -> None:
    record = an_analysis(batches=(a_batch(1), Batch(64, reason=str(HANG))))
    scaling = next(phase for phase in phases(record) if phase.key == "scaling")
    assert "batch 64: timed out in compile: passed its limit of 600 s" in scaling.note
    assert scaling.table is not None
    assert scaling.table.lines[1] == ("64", *["–"] * 6)


def test_times_of_batches_that_are_on_no_common_scale_are_left_out_with_the_reason() -> None:
    scaled, alone = a_batch(2), replace(a_batch(4), eager=None)
    (phase,) = [one for one in phases(an_analysis(batches=(scaled, alone))) if one.key == "scaling"]
    assert phase.table is not None
    first, second = (row.cells for row in phase.table.rows)
    assert "–" not in first
    assert second[1:5] == ("–",) * 4
    assert second[5] != "–", "the speed-up was timed in alternation, and is shown"
    assert phase.note.endswith("too uncertain against the size of the given inputs for a time: 4")


def test_phases_without_records_are_left_out() -> None:
    assert [phase.key for phase in phases(replace(make_failed_analysis(), batch_note=""))] == ["baseline", "compiling"]
    assert facts_of(make_failed_analysis(), "compiling") == {"Failed": "died in compile: SIGSEGV"}
    assert next(
        p for p in phases(replace(make_failed_analysis(), batch_note="not scaled: no")) if p.key == "scaling"
    ).note


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_advice_comes_first_and_no_figure_is_cut_on_any_width(width: int) -> None:
    text = render_text(an_analysis(), width)
    assert "Use inductor: it saves" in " ".join(text.split("╰")[0].split())
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for phase in ("Baseline: eager", "Compile cost", "Break-even", "Memory", "Correctness", "Batch sizes"):
        assert phase in text


def test_hostile_text_reaches_neither_terminal_nor_page() -> None:
    plan = a_plan(options=((HOSTILE, HOSTILE),))
    record = an_analysis(
        plan,
        workload=WorkloadSpec(HOSTILE),
        inspection=an_inspection(description=HOSTILE, notes=(HOSTILE,), inputs=(HOSTILE,)),
        trial=a_failure(number=0, plan=plan, message=HOSTILE, traceback=HOSTILE),
        steady=None,
        batches=(a_batch(1), a_batch(2), Batch(3, reason=HOSTILE)),
        batch_note=HOSTILE,
        advice=(Advice("use", HOSTILE), Advice("more", HOSTILE)),
    )
    for text in (render_text(record), render_analysis_html(record)):
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)
    page = render_analysis_html(record)
    assert "<script" not in page
    assert page.count("</style>") == 1


def test_the_page_has_the_policy_the_plots_and_every_section() -> None:
    page = render_analysis_html(an_analysis())
    assert "default-src 'none'" in page
    assert re.findall(r'<figure id="plot-(\w+)"', page) == ["latency", "cost", "memory", "scaling"]
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'aria-labelledby="([^"]+)"', page)) <= set(ids)
    for words in ("Recommendation", "Advice", "Speed and variation", "560 MiB", "3 outputs on 4 seeds agree"):
        assert words in page


def test_the_same_analysis_gives_the_same_page() -> None:
    page = render_analysis_html(an_analysis())
    assert render_analysis_html(an_analysis()) == page


@pytest.mark.parametrize(
    "record",
    [
        make_failed_analysis(),
        an_analysis(None, None),
        an_analysis(EAGER, 1.0),
        an_analysis(trial=a_trial(measurement=a_measurement(1.5, 1)), steady=None, batches=()),
        an_analysis(advice=()),
    ],
)
def test_partial_analyses_are_shown_too(record: Analysis) -> None:
    assert render_text(record)
    assert "</html>" in render_analysis_html(record)


def test_a_failure_shows_its_traceback_and_plots_only_what_was_seen() -> None:
    page = render_analysis_html(make_failed_analysis())
    assert "Traceback: here" in page
    assert plots(make_failed_analysis()) == []
    assert "<figure" not in page


def test_plots_have_a_summary_and_the_figures_behind_them() -> None:
    found = {plot.key: plot for plot in plots(an_analysis())}
    assert found["latency"].summary.startswith("Half of the calls of inductor take at most 8.2")
    assert found["memory"].table[0] == ("inductor", "98.0 MiB", "19.0 MiB", "312 MiB")
    assert found["memory"].summary == "Reserve 560 MiB of memory."
    assert [line[0] for line in found["scaling"].table] == ["1", "2", "4", "8"]
    assert found["cost"].summary.startswith("inductor is the first to pay back, after 9,2")
    assert "scaling" not in {plot.key for plot in plots(an_analysis(batches=(a_batch(4),)))}


def test_what_to_type_next_fits_what_was_found() -> None:
    spec = WorkloadSpec("my.module:make", mode="training", calls=500, restarts=4)
    alone = an_analysis(a_plan(mode="max-autotune"), workload=spec, batches=())
    tune, again = next_steps(alone)
    assert tune.command == ("torchwise tune my.module:make --device cpu --mode training --calls 500 --restarts 4")
    words = shlex.split(again.command)
    assert words[:3] == ["torchwise", "analyze", "my.module:make"]
    assert words[-2:] == ["--batches", "1,2,4,8"]
    assert Plan.from_json(words[words.index("--plan") + 1]) == alone.plan
    assert len(next_steps(an_analysis())) == 1  # batches were there
    failed = replace(alone, trial=a_failure(), steady=None)
    assert [step.command.split()[1] for step in next_steps(failed)] == ["bisect", "tune"], "no sizes of what fails"
    for one, names in ((alone, ["torchwise.tune", "torchwise.analyze"]), (failed, ["torchwise.tune"])):
        live = next_steps(replace(one, workload=WorkloadSpec("live:Net")))
        assert [step.command.partition("(")[0] for step in live] == names


def test_how_far_to_trust_it_is_said_once_at_the_top() -> None:
    note = "other processes used 1.2 of 2 cores meanwhile"
    noisy = a_measurement(1.5, notes=(note,))
    record = an_analysis(
        inspection=an_inspection(measurement=noisy, notes=("it draws random numbers",)),
        trial=a_trial(measurement=noisy),
        batches=(Batch(2, noisy), Batch(4, reason=str(CRASH))),
    )
    assert notes(record) == ["it draws random numbers"]
    sentence = record.judge_trust().sentence
    assert note in sentence
    assert " ".join(render_text(record, 300).split()).startswith(sentence)
    for text in (render_text(record, 300), render_analysis_html(record)):
        assert text.count(note) == 1
