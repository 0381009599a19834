"""An explanation as a record, on a terminal, and as a page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from builders import samples
from explain_samples import explanation, make_finding, price
from torchwise.errors import InputError
from torchwise.plan import EAGER, Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Interval, Measurement
from torchwise.records import format as show
from torchwise.records.explanation import (
    AutotunedOperator,
    Basis,
    Candidate,
    Explanation,
    FixTrial,
    Kernel,
    Saving,
    Stage,
    rank_findings,
)
from torchwise.records.saving import describe_saving as words
from torchwise.report.explanation import next_steps, render_explanation, render_explanation_html, write_explanation
from torchwise.report.plots.explanation import plots

KERNELS = {"aten::mm": 0.5, "aten::unknown": None, "aten::add": 0.1}


def render_text(told: Explanation, width: int = 120) -> str:
    out = StringIO()
    Console(file=out, width=width, no_color=True).print(render_explanation(told))
    return out.getvalue()


def test_the_dearest_comes_first_and_what_has_no_price_last() -> None:
    cheap, dear, unknown = (
        make_finding("cheap", price(1e-6)),
        make_finding("dear", price(2e-6)),
        make_finding("unknown"),
    )
    once = make_finding("once", price(0.0, once_s=1.5e-6 * 1000))
    assert [one.kind for one in rank_findings([unknown, cheap, once, dear], 1000)] == [
        "dear",
        "once",
        "cheap",
        "unknown",
    ]


def test_what_was_measured_and_does_not_show_counts_as_nothing() -> None:
    unclear = make_finding("unclear", Saving(Interval(-1e-3, 5e-6, 1e-3), Basis.MEASURED, ""))
    clear = make_finding("clear", price(1e-6))
    assert [one.kind for one in rank_findings([unclear, clear], 1000)] == ["clear", "unclear"]
    guess = make_finding("guess", Saving(Interval(0.0, 5e-6, 1e-5), Basis.ESTIMATED, ""))
    assert [one.kind for one in rank_findings([clear, guess], 1000)] == ["guess", "clear"]


def test_candidates_of_autotuning_are_shown_the_fastest_first() -> None:
    many = tuple(Candidate(f"triton_mm_{i}", 2e-6 + i * 1e-6) for i in range(6))
    mm = AutotunedOperator("mm", ("float32[8×4]", "float32[4×2]"), (*many, Candidate("broken", None)))
    one = AutotunedOperator("conv", ("float32[1]",), (Candidate("cudnn", 1e-3), Candidate("triton_conv", None)))
    told = replace(explanation(), autotuned=(mm, one))
    text = render_text(told)
    rows = [line.split() for line in text.partition("Candidates of autotuning")[2].splitlines()]
    shown = [row for row in rows if any("triton" in word or word in ("cudnn", "failed") for word in row)]
    assert [row[-1] for row in shown] == ["1.00×", "1.50×", "2.00×", "2.50×", "3.00×", "1.00×", "–"]
    assert "mm(float32[8×4], float32[4×2])" in " ".join(text.split())
    assert "and 2 more" in text
    assert "took the first of each" in text
    assert Explanation.from_json(told.to_json()) == told
    assert "Candidates of autotuning" not in render_text(explanation())


def test_it_comes_back_from_json() -> None:
    told = explanation(make_finding(found=price(1e-6), plan=Plan(backend="inductor")), make_finding())
    assert Explanation.from_json(told.to_json()) == told
    assert json.loads(told.to_json())["schema"] == "torchwise.explanation/1"


def test_a_record_from_before_limits_trust_and_inflation_were_kept_is_read() -> None:
    data = json.loads(explanation().to_json())
    del data["limits"], data["trust"], data["execution"]["inflation"]
    told = Explanation.from_json(json.dumps(data))
    assert told.limits is None
    assert render_text(told).startswith("The machine was quiet: the ratio holds within ±0.0%.")
    assert [plot.key for plot in plots(told)] == ["stages", "latency"]


def test_another_schema_is_refused() -> None:
    with pytest.raises(InputError, match=r"torchwise\.explanation/1"):
        Explanation.from_json(explanation().to_json().replace("explanation/1", "explanation/9"))


@pytest.mark.parametrize("width", [60, 120])
def test_a_terminal_shows_place_price_and_mend(width: int) -> None:
    text = render_text(explanation(make_finding(found=price(12e-6))), width)
    for part in (
        "guards cost time",
        "model.py:12, in forward",
        "if h.mean() > 0:",
        "mend it",
        "graph capture",
        "noisy",
    ):
        assert part in text
    assert "saves 12.0 µs" in " ".join(text.split())


def test_a_page_links_the_line_and_loads_nothing() -> None:
    page = render_explanation_html(explanation(make_finding(found=price(12e-6)), make_finding()))
    assert 'href="file:///home/me/model.py#L12"' in page
    assert "if h.mean() &gt; 0:" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "saving unknown" in page


def test_text_from_a_model_cannot_harm_terminal_or_page() -> None:
    evil = explanation(make_finding(cause="\x1b[31m<script>alert(1)</script>", title="\x1b]0;t\x07x"))
    assert "\x1b" not in render_text(evil)
    page = render_explanation_html(evil)
    assert "<script>" not in page
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (price(12e-6), "saves 12.0 µs per call [10.8 µs, 13.2 µs], measured"),
        (
            Saving(Interval(-3e-6, -2e-6, -1e-6), Basis.MEASURED, ""),
            "costs 2.00 µs per call [1.00 µs, 3.00 µs], measured",
        ),
        (Saving(Interval(0.0, 0.0, 0.0), Basis.MEASURED, "", 7.0), "saves 7.00 s once in each process, measured"),
        (Saving(Interval(0.0, 0.0, 0.0), Basis.ESTIMATED, ""), "saves nothing, estimated"),
        (
            Saving(Interval(0.0, 2e-6, 5e-6), Basis.MEASURED, ""),
            "saves nothing measurable: at most 5.00 µs per call, measured",
        ),
        (Saving(Interval(0.0, 2e-6, 4e-6), Basis.ESTIMATED, ""), "saves at most 4.00 µs per call, estimated"),
        (
            Saving(Interval(1e-6, 2e-6, 3e-6), Basis.MEASURED, "", 7.0),
            "saves 2.00 µs per call [1.00 µs, 3.00 µs] and saves 7.00 s once in each process, measured",
        ),
        (Saving(Interval(0.0, 0.0, 9e-6), Basis.INCONCLUSIVE, ""), "could not be measured"),
        (
            Saving(Interval(0.0, 0.0, 9e-6), Basis.INCONCLUSIVE, "", 7.0),
            "saves 7.00 s once in each process, measured. Its saving per call could not be measured",
        ),
        (None, "saving unknown"),
    ],
)
def test_a_price_in_words(found: Saving | None, expected: str) -> None:
    assert words(found) == expected


def test_the_next_command_proves_the_dearest_plan_that_pays() -> None:
    plan = Plan(backend="inductor", transforms=("complex_to_real",))
    told = explanation(make_finding(found=price(9e-6), plan=EAGER), make_finding(found=price(5e-6), plan=plan))
    first, last = next_steps(told)
    assert first.command == f"torchwise tune model.py:factory --device cpu --plan '{plan.to_json()}'"
    assert last.command == "torchwise tune model.py:factory --device cpu"


def test_the_next_command_is_for_the_same_request_and_can_be_pasted() -> None:
    told = explanation(workload=WorkloadSpec("my models/a.py:make", mode="training", calls=7))
    (only,) = next_steps(told)
    assert only.command == "torchwise tune 'my models/a.py:make' --device cpu --mode training --calls 7"


def test_a_plan_whose_saving_does_not_show_is_not_proposed() -> None:
    unclear = Saving(Interval(-1e-6, 2e-6, 5e-6), Basis.MEASURED, "")
    told = explanation(make_finding(found=unclear, plan=Plan(backend="inductor")))
    assert len(next_steps(told)) == 1


def test_each_plot_has_its_figures() -> None:
    kernels = (
        Kernel("aten::addmm", 2.0, 80e-6, 1000.0, 4e6, 0.5),
        Kernel("cpp_fused_0", 1.0, 10e-6, 1e4, None, 0.1, generated=True),
        Kernel("aten::odd", 1.0, 5e-6),
    )
    stages = (Stage("graph capture", 3.0, "", ""), Stage("compilation", 1.0, "", ""))
    roofline, timeline, latency = plots(explanation(kernels=kernels, stages=stages))
    assert [line[1:] for line in roofline.table] == [
        ("aten::addmm", "80.0 µs", "40.0 µs", "50 %", "FLOPs"),
        ("cpp_fused_0", "10.0 µs", "1.00 µs", "10 %", "bytes"),
    ]
    assert "reaches 50 % of the roofline" in roofline.summary
    assert timeline.table == (("graph capture", "3.00 s", "75 %"), ("compilation", "1.00 s", "25 %"))
    assert [line[0] for line in latency.table] == ["torch.compile", "eager"]
    assert all(plot.svg.startswith("<svg") for plot in (roofline, timeline, latency))


def test_the_points_of_the_roofline_have_the_numbers_of_the_table() -> None:
    named = tuple(Kernel(name, 1.0, 9e-6 / n, 1e4, None, share) for n, (name, share) in enumerate(KERNELS.items(), 1))
    told = explanation(kernels=named)
    assert [line[:2] for line in plots(told)[0].table] == [("1", "aten::mm"), ("3", "aten::add")]
    page = render_explanation_html(told)
    for number, name in enumerate(KERNELS, 1):
        assert re.search(rf"<span>{number}</span></td>\s*<th[^>]*>{name}</th>", page)
    assert "#" not in render_text(told), "a terminal has no plot to refer to"


def test_the_plots_of_a_page_agree_with_its_sentences() -> None:
    kernels = tuple(Kernel(name, 1.0, 9e-6 / n, 1e4, None, share) for n, (name, share) in enumerate(KERNELS.items(), 1))
    summary = plots(explanation(kernels=kernels))[0].summary
    assert summary.startswith("aten::mm, the longest, reaches ")
    assert plots(explanation(kernels=kernels[1:]))[0].summary.startswith("aten::add, the longest whose work is known, ")
    drifting = Measurement((1.0, 2.0, 4.0), (3.0, 2.0, 20.0))
    assert drifting.speedup.mid == 3.0, "and the ratio of the medians is 1.5"
    told = explanation(measurement=drifting)
    call_s = told.execution.call_s.mid
    own, eager = plots(told)[-1].table
    assert (own[3], eager[3]) == (show.seconds(call_s), show.seconds(3 * call_s))


def test_the_one_stage_in_another_colour_is_the_longest() -> None:
    stages = tuple(Stage(f"stage {n}", n, "", "") for n in (1.0, 3.0, 2.0))
    bars = [
        re.findall(r"var\(--(c\d)\)", plot.svg) for plot in plots(explanation(stages=stages)) if plot.key == "stages"
    ]
    assert bars == [["c1", "c2", "c1"]]


def test_code_in_a_sentence_of_a_page_is_marked_and_escaped() -> None:
    page = render_explanation_html(explanation(make_finding(title="`x.item()` waits", cause="a `b<c>` and a lone `")))
    assert "<code>x.item()</code> waits" in page
    assert "a <code>b&lt;c&gt;</code> and a lone `" in page


@pytest.mark.parametrize(("speed", "look"), [(1.5, ""), (0.5, " caution"), (None, " none")])
def test_the_frame_of_the_call_is_green_only_if_it_is_faster_and_grey_if_nobody_can_tell(
    speed: float | None, look: str
) -> None:
    times = samples(0.02, 60)
    base = samples(0.02, 4, noise=0.5) if speed is None else tuple(time * speed for time in times)
    page = render_explanation_html(explanation(measurement=Measurement(times[: len(base)], base)))
    assert f'class="decision{look}"' in page


def test_what_was_not_compiled_has_no_time_line_and_what_has_no_work_no_roofline() -> None:
    bare = explanation(kernels=(), stages=(Stage("graph capture", 0.0, "", ""),))
    assert [plot.key for plot in plots(bare)] == ["latency"]
    assert "<figure" in render_explanation_html(bare)


def test_what_finds_nothing_says_so() -> None:
    assert "No finding has a relevant potential saving" in render_text(explanation())
    assert "No finding has a relevant potential saving" in render_explanation_html(explanation())


def test_files_are_written_whole(tmp_path: Path) -> None:
    told = explanation(make_finding(found=price(1e-6)))
    write_explanation(told, html=tmp_path / "x.html", json=tmp_path / "x.json")
    assert Explanation.from_json((tmp_path / "x.json").read_text()) == told
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")


def test_what_was_tried_is_shown_with_what_came_of_it() -> None:
    helps = FixTrial("torch._dynamo.config.x = True", True, "compiled 2 times", price(20e-6), 2)
    useless = FixTrial("torch.compile(model, dynamic=True)", False, "compiled 9 times, and then given up as well")
    told = explanation(make_finding("recompile", price(20e-6), tried=(helps, useless)))
    assert Explanation.from_json(told.to_json()) == told
    for text in (render_text(told), re.sub(r"</?strong>", "", render_explanation_html(told))):
        flat = " ".join(text.split())
        assert "Tried: torch._dynamo.config.x = True: compiled 2 times; it saves 20.0 µs per call" in flat
        assert "dynamic=True): compiled 9 times, and then given up as well; it does not help" in flat


def test_a_fix_that_could_not_be_timed_is_not_said_to_help_nor_not_to() -> None:
    untold = Saving(Interval(0.0, 0.0, 100e-6), Basis.INCONCLUSIVE, "")
    seen = FixTrial("torch._dynamo.config.x = True", False, "compiled 2 times", untold, 2)
    text = " ".join(render_text(explanation(make_finding("recompile", untold, tried=(seen,)))).split())
    assert "x = True: compiled 2 times; its saving could not be measured" in text
    assert "help" not in text


@pytest.mark.parametrize(("inflation", "is_said"), [(1.4, False), (3.0, True), (0.3, True)])
def test_kernels_of_a_profile_unlike_the_call_are_marked(inflation: float, is_said: bool) -> None:
    told = explanation(execution=replace(explanation().execution, inflation=inflation))
    for text in (render_text(told), render_explanation_html(told)):
        assert (f"the call took {inflation:.2f}" in " ".join(text.split())) is is_said
