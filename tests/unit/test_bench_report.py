"""A benchmark on terminals, as Markdown, CSV, JSON and plots: the same figures everywhere, and none misleading."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from bench_samples import a_benchmark, a_row, a_spec, ours, some_rows
from builders import UNCLEAR, WRONG, a_measurement, samples
from torchwise.errors import InputError
from torchwise.plan import EAGER
from torchwise.records import Measurement
from torchwise.records.benchmark import Benchmark, Row, RowState, rival_of
from torchwise.records.scale import scale_of, with_trust
from torchwise.records.suite_summary import describe_summary, summarize
from torchwise.report import BenchProgress, export, read_benchmark, render_benchmark, write_plots
from torchwise.report.bench import blocks, line_of
from torchwise.report.bench_files import to_csv, to_markdown
from torchwise.report.plots.bench import roofline_picture, speedup_picture
from torchwise.report.progress import to_log_line

WIDTHS = (60, 80, 90, 150)
HOSTILE = "\x1b[2J[red]x[/red]|<script>`"


def render_text(benchmark: Benchmark, width: int = 150, *commands: str, **console: object) -> str:
    file = io.StringIO()
    Console(file=file, width=width, **console).print(render_benchmark(benchmark, commands))  # type: ignore[arg-type]
    return file.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


def lines_of(benchmark: Benchmark) -> dict[str, object]:
    return {line.contender: line for line in blocks(benchmark)[0].lines}


def test_every_way_to_end_has_its_words() -> None:
    found = {line.contender: (line.answers, line.why) for line in blocks(a_benchmark())[0].lines}
    assert found == {
        "eager": ("passed", ""),
        "default": ("passed", ""),
        "reduce-overhead": ("passed, overwritten", "the next call overwrites the answer"),
        "max-autotune": ("passed", ""),
        "aot-inductor": ("not right", "values: output[0] is off at (3, 17): -0.412 for 0.371"),
        "thunder": ("failed", "died in compile: SIGSEGV"),
        "openvino": ("missing", "openvino runs on the CPU here"),
        "torchwise": ("passed", ""),
    }
    assert line_of(a_row(verdict=UNCLEAR), a_benchmark()).answers == "not comparable"


def test_a_line_holds_every_figure() -> None:
    line = lines_of(a_benchmark())["max-autotune"]
    figures = (line.time, line.speedup, line.cold, line.warm, line.memory, line.roofline)
    assert figures == ("8.24 ms", "1.50× [1.50, 1.51]", "8 min 32 s", "18.0 s", "350 MiB (1.25×)", "3.8 %")


def test_torchwise_shows_its_plan_its_search_and_the_duel() -> None:
    line = lines_of(a_benchmark())["torchwise"]
    speed = "1.13× [1.12, 1.14] the speed of the best alternative (max-autotune)"
    expected = f"plan inductor + capture call, searched 43.2 s, {speed}"
    assert line.choice == expected
    given = line_of(replace(ours(), search_s=None), a_benchmark()).choice
    assert given.startswith("plan inductor + capture call, given by the request, 1.13×")
    assert lines_of(a_benchmark())["default"].choice == ""


def test_a_row_that_is_slower_says_what_was_tried_instead() -> None:
    searched = ("inductor: faster, but does not pay back", "freezing: the workload has no gemm")
    said = "tried and excluded plans: inductor: faster, but does not pay back; freezing: the workload has no gemm"
    assert said in line_of(ours(duel=0.9, searched=searched), a_benchmark()).remarks
    assert not line_of(ours(duel=1.0, searched=searched), a_benchmark()).search
    assert not line_of(ours(duel=1.2, searched=searched), a_benchmark()).search


def test_a_duel_of_eager_with_itself_is_told_as_such() -> None:
    row = ours(1.0, 0.9, plan=EAGER, rival="eager", searched=("inductor: slower",))
    line = line_of(row, a_benchmark((row,)))
    assert "the speed of the best alternative (eager, the same plan)" in line.choice
    assert not line.search


@pytest.mark.parametrize(
    ("row", "end"),
    [
        (ours(duel=None), "no other contender has correct answers in precision native"),
        (
            ours(duel=None, reason="against default: timed out in measure: 300 s"),
            "against default: timed out in measure",
        ),
        (ours(verdict=WRONG), "searched 43.2 s"),
    ],
)
def test_a_duel_that_is_not_there_or_not_right_is_not_shown(row: Row, end: str) -> None:
    choice = line_of(row, a_benchmark()).choice
    assert end in choice
    assert "the speed of the best alternative (" not in choice


def test_the_best_is_marked_once_per_precision_class_and_never_wrong() -> None:
    rows = (a_row("default", 1.2), a_row("thunder", 5.0, verdict=WRONG), a_row("x", 3.0, precision="tf32"), ours(1.7))
    marked = [line.name for line in blocks(a_benchmark(rows))[0].lines if line.is_best]
    assert marked == ["x ★", "torchwise ★"]


UNSURE = a_row("default", measurement=Measurement((1.0,) * 12, (0.8, 1.6) * 6))
GARBAGE = a_row("eager", measurement=Measurement((1.0,) * 12, (0.256,) * 12))


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ((a_row("eager", 1.0), a_row("x", 0.9)), ["eager ★"]),
        ((a_row("eager", 1.0), a_row("x", 1.2)), ["x ★"]),
        ((a_row("eager", 1.0), a_row("x", 0.9), UNSURE), []),  # which may be the fastest
        ((a_row("eager", 1.0), a_row("x", 2.5), UNSURE), ["x ★"]),  # it cannot be the fastest
        ((a_row("eager", 1.0), a_row("x", 1.2), UNSURE), []),
        ((UNSURE,), []),
        ((GARBAGE, a_row("x", 0.9)), []),  # eager at a quarter of its own speed
    ],
)
def test_the_best_is_marked_only_where_it_is_told(rows: tuple[Row, ...], best: list[str]) -> None:
    (block,) = blocks(a_benchmark(rows))
    assert [line.name for line in block.lines if line.is_best] == best
    assert bool(block.note) == (len(rows) > 1 and not best)


@pytest.mark.parametrize(
    ("other", "duel", "best"),
    [
        (1.5, 1.02, ["torchwise ★"]),
        (1.5, 0.97, ["max-autotune ★"]),
        (2.6, 1.02, []),  # which met neither: one of the findings is wrong
        (2.6, None, ["reduce-overhead ★"]),
    ],
)
def test_what_was_timed_in_one_process_says_which_is_the_best(
    other: float, duel: float | None, best: list[str]
) -> None:
    """Speed-ups over eager put the two in another order when eager is unsteady from one process to the next."""
    benchmark = a_benchmark((a_row("reduce-overhead", other), a_row("max-autotune", 2.3), ours(1.9, duel)))
    found = {line.contender: line for line in blocks(benchmark)[0].lines}
    assert [line.name for line in found.values() if line.is_best] == best
    if duel:
        mine, its = (
            scale_of(benchmark, a_spec()).find_scaled(found[name].row) for name in ("torchwise", "max-autotune")
        )
        assert mine
        assert its
        assert mine.speedup.mid / its.speedup.mid == pytest.approx(duel, rel=0.02)
        assert its.time.mid / mine.time.mid == pytest.approx(duel, rel=0.02)
        assert ("the speed of the best alternative (max-autotune)" in found["torchwise"].choice) == (other < 2)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_tells_every_contender_and_why(width: int) -> None:
    text = render_text(a_benchmark(), width, "torchwise compare a.json b.json")
    assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= width
    found = words(text)
    for line in blocks(a_benchmark())[0].lines:
        assert line.name in found
        assert line.why in found
        assert line.choice in found
    assert "torchwise over eager: 1.70×, on one target" in found
    assert "torchwise compare a.json b.json" in found


def test_a_wide_terminal_has_every_column() -> None:
    header = next(line for line in render_text(a_benchmark()).splitlines() if "speed-up" in line)
    assert words(header) == "contender per call speed-up cold warm peak memory roofline precision answers"


def test_a_narrow_terminal_still_tells_the_precision() -> None:
    assert "torchwise: in bf16" in render_text(a_benchmark((ours(precision="bf16"),)), 70)


def test_escapes_and_markup_are_text_everywhere(tmp_path: Path) -> None:
    row = a_row(HOSTILE, None, state=RowState.FAILED, reason=HOSTILE, target=f"zoo:{HOSTILE}")
    benchmark = a_benchmark((row, a_row(HOSTILE, target=f"zoo:{HOSTILE}")))
    for text in (render_text(benchmark, force_terminal=True), to_markdown(benchmark), to_csv(benchmark)):
        assert "\x1b[2J" not in text
    assert "[red]x[/red]" in render_text(benchmark)
    assert "<script>" not in to_markdown(benchmark).replace("\\<script\\>", "")
    files = write_plots(benchmark, tmp_path)
    assert files
    assert all(file.stat().st_size for file in files)


def test_a_benchmark_without_rows_is_shown() -> None:
    assert "No row is finished yet." in render_text(a_benchmark(()))
    assert to_markdown(a_benchmark((), peaks=None)).startswith("# Benchmark")


def duel(ratio: float, target: str, **changes: object) -> Row:
    return ours(1.5, ratio, target=target, **changes)


def test_the_summary_is_geometric_and_counts_only_right_answers() -> None:
    rows = (
        a_row("default", 2.0, target="zoo:a.a"),
        a_row("default", 8.0, target="zoo:b.b"),
        a_row("default", 100.0, target="zoo:c.c", verdict=WRONG),
    )
    (mean,) = summarize(a_benchmark(rows)).speedups
    assert mean.ratio == pytest.approx(4.0, rel=0.02)
    assert mean.targets == 2
    (sentence,) = describe_summary(summarize(a_benchmark(rows)))
    assert sentence.endswith("geometric mean of 2 targets, correct on 2 of 3")


def test_what_was_not_tried_yet_is_not_called_wrong() -> None:
    rows = (a_row("default", 2.0, target="zoo:a.a"), a_row("eager", 1.0, target="zoo:b.b"))
    (sentence,) = describe_summary(summarize(a_benchmark(rows)))
    assert sentence.endswith("over eager: 2.00×, on one target")


def test_the_summary_never_mixes_precisions() -> None:
    rows = (duel(2.0, "zoo:a.a"), duel(8.0, "zoo:b.b", precision="bf16"))
    summary = summarize(a_benchmark(rows))
    assert {mean.level: round(mean.ratio) for mean in summary.duels} == {"native": 2, "bf16": 8}
    assert {mean.level for mean in summary.speedups} == {"native", "bf16"}
    assert any("torchwise in bf16 over eager" in text for text in describe_summary(summary))


def test_what_the_users_own_rule_permits_is_one_level() -> None:
    spec = a_spec("zoo:a.a", tolerance=0.05)
    rows = (
        a_row("int8-dynamic", 1.4, workload=spec),
        ours(2.0, 1.5, workload=spec, precision="bf16"),
        ours(8.0, 6.0, workload=a_spec("zoo:b.b", tolerance=0.05)),
        ours(3.0, None, workload=a_spec("zoo:c.c", tolerance=0.05), precision="bf16"),
    )
    assert rival_of(rows[:2], rows[1]) is rows[0]
    assert [row.contender for row in scale_of(a_benchmark(rows[:2]), spec).best().values()] == ["torchwise"]
    summary = summarize(a_benchmark(rows))
    (mean,) = summary.duels
    assert mean.ratio == pytest.approx(3.0, rel=0.05)
    told = describe_summary(summary)
    assert not any("bf16" in text for text in told)
    assert any(text.endswith("no other contender with correct answers was timed beside it") for text in told)


def test_duels_are_faster_equal_or_slower_by_their_whole_interval() -> None:
    noisy = Measurement(samples(1.0, 12, noise=0.5, seed=1), samples(1.0, 12, noise=0.5, seed=2))
    rows = (
        duel(1.2, "zoo:fast.er"),
        duel(0.9, "zoo:slow.er"),
        duel(0.5, "zoo:slow.est"),
        duel(1.0, "zoo:equ.al"),
        replace(ours(target="zoo:noi.sy"), duel=noisy, duel_repeats=()),
        duel(0.98, "zoo:its.elf", plan=EAGER, rival="eager"),
        duel(2.0, "zoo:wro.ng", verdict=WRONG),
    )
    summary = summarize(a_benchmark(rows))
    targets = [
        [row.workload.target for row in found]
        for found in (summary.faster, summary.equal, summary.slower, summary.inconclusive, summary.without)
    ]
    assert targets == [
        ["zoo:fast.er"],
        ["zoo:equ.al", "zoo:its.elf"],
        ["zoo:slow.est", "zoo:slow.er"],
        ["zoo:noi.sy"],
        ["zoo:wro.ng"],
    ]
    found = "\n".join(describe_summary(summary))
    assert "on 6 targets: 1 faster, 2 equal within the interval, 2 slower, 1 inconclusive" in found
    assert re.search(r"slower on zoo:slow.est \(inference on cuda\): 0.5\d*× \[.*\] max-autotune's speed", found)
    assert "not compared on zoo:wro.ng (inference on cuda): not right: values: output[0]" in found


def test_csv_holds_raw_figures_in_si_units() -> None:
    benchmark = a_benchmark()
    table = list(csv.DictReader(io.StringIO(to_csv(benchmark))))
    assert len(table) == len(benchmark.rows)
    best, failed, last = table[3], table[5], table[-1]
    row = scale_of(benchmark, benchmark.rows[3].workload).find_scaled(benchmark.rows[3])
    assert row
    assert float(best["time_s"]) == row.time.mid
    assert float(best["time_s"]) * float(best["speedup_ratio"]) == pytest.approx(float(table[0]["time_s"]))
    assert float(best["speedup_low_ratio"]) == row.speedup.low
    assert float(best["cold_s"]) == 512.0
    assert float(best["peak_memory_bytes"]) == 350 << 20
    assert float(best["roofline_share"]) == row.roofline_share(benchmark.peaks)
    assert (best["is_best_of_precision"], last["is_best_of_precision"]) == ("False", "True")
    assert (failed["answers"], failed["why"], failed["time_s"]) == ("failed", "died in compile: SIGSEGV", "")
    assert (last["plan"], float(last["search_s"]), last["rival"]) == ("inductor + capture call", 43.2, "max-autotune")
    assert float(last["duel_ratio"]) == pytest.approx(1.13, rel=0.02)


def test_markdown_begins_with_a_line_for_each_target_where_there_are_several() -> None:
    text = to_markdown(a_benchmark((*some_rows("zoo:a.b"), *some_rows("zoo:c_d.e"))))
    (first, second) = [line for line in text.splitlines() if line.startswith("| zoo:")]
    assert first == second.replace("c\\_d.e", "a.b")
    cells = [cell.strip() for cell in first.split("|")]
    assert cells[1:3] == ["zoo:a.b", "inductor + capture call"]
    assert re.fullmatch(r"7\.\d\d ms", cells[3])
    assert cells[5].startswith("max-autotune: 1.1")
    assert "| target | plan |" not in to_markdown(a_benchmark())  # one target has its table alone


def test_the_line_of_a_target_says_why_it_has_no_figures() -> None:
    alone = ours(duel=None, reason="no other right answer", workload=a_spec("zoo:a.b"))
    wrong = ours(verdict=WRONG, workload=a_spec("zoo:c.d"))
    failed = a_row("torchwise", None, target="zoo:e.f", state=RowState.FAILED, reason="died in compile")
    lines = [
        line for line in to_markdown(a_benchmark((alone, wrong, failed))).splitlines() if line.startswith("| zoo:")
    ]
    ends = [line.split("|")[-2].strip() for line in lines]
    assert ends[0] == "no other right answer"
    assert ends[1].startswith("not right: values: output")
    assert ends[2] == "failed: died in compile"


def test_markdown_has_a_table_for_each_target_and_the_summary() -> None:
    text = to_markdown(a_benchmark((*some_rows("zoo:a.b"), *some_rows("zoo:c.d"))))
    assert text.count("\n| contender | precision |") == 2
    assert "\n## zoo:c.d, inference on cuda, for latency\n" in text
    tables = text[text.index("\n## ") :]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables.splitlines() if line.startswith("|")} == {10}
    assert "- torchwise over the best alternative: 1.13×, geometric mean of 2 targets" in text


def test_exports_go_by_their_suffix_and_json_comes_back(tmp_path: Path) -> None:
    benchmark = a_benchmark()
    for name in ("a.json", "a.csv", "a.md"):
        assert export(benchmark, tmp_path / name).stat().st_size
    assert read_benchmark(tmp_path / "a.json") == benchmark
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.csv", "a.json", "a.md"]  # no draft is left


@pytest.mark.parametrize(("name", "found"), [("a.txt", "'.txt'"), ("a", "no suffix")])
def test_another_suffix_is_refused_with_the_way_out(tmp_path: Path, name: str, found: str) -> None:
    message = rf"{found}, but .* one of \.json, \.csv, \.md, such as .*a\.json"
    with pytest.raises(InputError, match=message):
        export(a_benchmark(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_read_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_benchmark(tmp_path / "none.json")
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InputError, match=r"a\.json: this is no Benchmark: .*give a \.json file that `torchwise bench`"):
        read_benchmark(tmp_path / "a.json")


def test_plots_are_written_as_png_and_svg(tmp_path: Path) -> None:
    files = write_plots(a_benchmark(), tmp_path / "plots")
    assert [file.name for file in files] == ["speedup.png", "speedup.svg", "roofline.png", "roofline.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[1].read_text()
    before = files[1].read_bytes()
    assert write_plots(a_benchmark(), tmp_path / "plots")[1].read_bytes() == before


def test_the_picture_of_speed_ups_says_what_is_wrong_and_what_is_lowered() -> None:
    picture = speedup_picture(a_benchmark((*some_rows(), a_row("thunder", 4.0, precision="bf16"))))
    (group,) = picture.groups
    marks = {mark.series: mark for mark in group.marks}
    assert list(marks) == ["default", "reduce-overhead", "max-autotune", "aot-inductor", "torchwise", "thunder in bf16"]
    assert [name for name, mark in marks.items() if mark.is_hollow] == ["aot-inductor"]
    assert marks["torchwise"].low <= marks["torchwise"].mid <= marks["torchwise"].high
    assert math.isclose(marks["torchwise"].mid, 1.7, rel_tol=0.02)


def test_the_picture_of_the_roofline_has_eager_the_best_other_and_torchwise() -> None:
    (group,) = roofline_picture(a_benchmark()).groups
    assert [mark.series for mark in group.marks] == ["eager", "best alternative", "torchwise"]
    assert [round(mark.mid, 1) for mark in group.marks] == [2.5, 3.8, 4.3]  # not the wrong answer's 7.5 %
    assert roofline_picture(a_benchmark(peaks=None)).groups == ()


@pytest.mark.parametrize("changes", [{"verdict": WRONG}, {"precision": "bf16"}])
def test_the_picture_of_the_roofline_leaves_out_what_is_wrong_or_lowered(changes: dict[str, object]) -> None:
    (group,) = roofline_picture(a_benchmark((a_row("eager", 1.0), a_row("default"), ours(**changes)))).groups
    assert [mark.series for mark in group.marks] == ["eager", "best alternative"]


def test_sixty_targets_make_a_tall_picture() -> None:
    rows = tuple(
        row for number in range(60) for row in (a_row(target=f"zoo:a.b{number}"), ours(target=f"zoo:a.b{number}"))
    )
    picture = speedup_picture(a_benchmark(rows))
    assert len(picture.groups) == 60
    assert picture.height(legend_columns=4) > 60 * 0.45


def test_plots_say_when_their_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="plots cannot be written to"):
        write_plots(a_benchmark(), tmp_path / "file")


def test_a_log_of_progress_has_a_plain_line_for_each_event() -> None:
    file, kept = io.StringIO(), []
    rows = some_rows("zoo:a.b")
    with BenchProgress(Console(file=file, width=60), clock=lambda: 0.0, keep=kept.append) as progress:
        progress.start_target(rows[0].workload, 2, 3)
        for row in (rows[3], rows[5], rows[-1]):
            progress.start_contender(row.contender)
            if row is rows[-1]:
                progress.start_step("torchwise: trial 0: inductor")
            progress.stage("compile")
            progress.finish_row(a_benchmark((row,)), row)
    assert [line.removeprefix("[   0:00] ") for line in file.getvalue().splitlines()] == [
        "2/3 zoo:a.b: profiling the model",
        "2/3 zoo:a.b: max-autotune",
        "zoo:a.b: max-autotune, so far: 1.50× [1.50, 1.50], first call +8 min 32 s, passed",
        "2/3 zoo:a.b: thunder",
        "zoo:a.b: thunder: failed (died in compile: SIGSEGV)",
        "2/3 zoo:a.b: torchwise",
        "2/3 zoo:a.b: torchwise: trial 0: inductor",
        "zoo:a.b: torchwise, so far: 1.70× [1.70, 1.70], first call +38.2 s, passed, plan inductor + capture "
        "call, searched 43.2 s, 1.13× [1.12, 1.14] the speed of the best alternative (max-autotune)",
    ]
    assert [benchmark.rows for benchmark in kept] == [(rows[3],), (rows[5],), (rows[-1],)]
    assert progress.benchmark == kept[-1]


def test_a_terminal_shows_target_contender_and_stage_while_they_last() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
    with BenchProgress(console) as progress:
        progress.start_target(a_row().workload, 2, 3)
        progress.start_contender("max-autotune")
        progress.stage("compile")
        progress._live.refresh()
    assert "2/3 zoo:tutorial.fusion_demo@small: max-autotune, compile" in file.getvalue()
    assert "in total, no row is done yet" in file.getvalue()


def test_a_finished_row_in_a_line_says_what_is_wrong_with_its_answers() -> None:
    row = a_row("x", 2.0, verdict=WRONG, precision="bf16")
    line = to_log_line(line_of(row, a_benchmark((row,))))
    assert re.fullmatch(r"x, so far: 2.*× \[.*\] in bf16, first call \+38.2 s, not right \(values: .*\)", line)


def test_a_contenders_name_may_look_like_a_part_of_the_line() -> None:
    row = a_row("team: ours", 2.0, verdict=WRONG)
    line = to_log_line(line_of(row, a_benchmark((row,))))
    assert line.startswith("team: ours, so far: ")
    assert ", not right (values: " in line


def test_reports_load_neither_torch_nor_the_benchmark_loop() -> None:
    code = (
        "import sys, torchwise.report, torchwise.records.comparison; "
        "print({'torch', 'torchwise.bench'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_how_far_to_trust_it_is_said_once_at_the_top() -> None:
    notes = ("other processes used 1.2 of 2 cores meanwhile",)
    noisy = Measurement(samples(1.0, 12, noise=0.9, seed=1), samples(1.0, 12, noise=0.9, seed=2), notes=notes)
    benchmark = a_benchmark((a_row("eager", 1.0), replace(ours(measurement=noisy), duel=a_measurement(notes=notes))))
    text, page = render_text(benchmark), to_markdown(benchmark)
    assert text.startswith("The machine was disturbed: other processes used 1.2 of 2 cores meanwhile; ratios hold")
    assert page.startswith("# Benchmark\n\nThe machine was disturbed: other processes")
    assert text.count("other processes") == page.count("other processes") == 1
    assert json.loads(with_trust(benchmark).to_json())["trust"]["reliability"] == "limited"


def test_a_duel_that_failed_is_named_beside_the_one_that_is_shown() -> None:
    row = ours(reason="against default: timed out in measure: 300 s")
    for text in (render_text(a_benchmark((row,))), to_markdown(a_benchmark((row,)))):
        assert "the speed of the best alternative (max-autotune)" in words(text)
        assert "against default: timed out in measure: 300 s" in words(text)


def test_measurements_of_one_round_are_shown() -> None:
    once = a_measurement(1.5, 1)
    assert "passed" in render_text(a_benchmark((a_row(measurement=once),)))
