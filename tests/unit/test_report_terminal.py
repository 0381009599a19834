"""A study on terminals wide and narrow, with colour and without."""

from __future__ import annotations

import io
import re
import shlex
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from builders import UNCLEAR, a_decision, a_failure, a_measurement, a_plan, a_study, a_trial, an_inspection
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Costs, FailureKind, Measurement, Study, StudyState
from torchwise.records import format as show
from torchwise.records.candidates import rows
from torchwise.report import render_decision, render_study

WIDTHS = (60, 80, 100, 160)


def render_text(what: RenderableType, width: int = 160, **console: object) -> str:
    file = io.StringIO()
    Console(file=file, width=width, **console).print(what)  # type: ignore[arg-type]
    return file.getvalue()


def words(text: str) -> str:
    """Return text without line breaks and frames, so that a sentence is found however it was wrapped."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    lines = render_text(render_study(a_study()), width).splitlines()
    assert max(cell_len(line.rstrip()) for line in lines) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_tells_the_decision_every_plan_and_why_each_lost(width: int) -> None:
    study = a_study()
    found = words(render_text(render_study(study), width))
    assert study.decision is not None
    assert study.decision.reason in found
    assert "1.71×" in found
    if width < 130:  # in the table, other columns stand between the lines of a sentence
        for sentence in (
            "its process died in compile: SIGSEGV",
            "wrong answer: values: output[0] is off at (3, 17)",
            "took too long in compile: more than the limit of 600 s",
            "it could no longer lead",
            "slower than eager: 0.83",
        ):
            assert sentence in found


def test_a_wide_terminal_has_every_column() -> None:
    found = render_text(render_study(a_study()), 160)
    header = next(line for line in found.splitlines() if "speed-up" in line and "why" in line)
    assert " ".join(header.split()) == "# plan speed-up per call compile warm peak memory answer why"
    row = next(line for line in found.splitlines() if line.lstrip().startswith("3 "))
    for cell in ("inductor + channels_last", "1.71× [1.45, 2.02]", "7.24 ms", "38.2 s", "4.10 s", "312 MiB", "passed"):
        assert cell in row


@pytest.mark.parametrize(
    ("width", "header"), [(60, "plan speed-up answer"), (80, "# plan speed-up per call compile answer")]
)
def test_a_narrow_terminal_has_fewer_columns(width: int, header: str) -> None:
    assert header in words(render_text(render_study(a_study()), width))


@pytest.mark.parametrize("width", [80, 100, 130, 160])
def test_figures_that_are_wide_squeeze_no_plan_and_none_is_lost(width: int) -> None:
    times = tuple(0.0001 * 9.7 ** (step / 8) for step in range(24))
    costs = Costs(512.0, 18.0, 350 << 20, 280 << 20)
    plan = a_plan(options=(("freezing", True), ("max_fusion_size", 8)))
    trials = [a_trial(0, plan, measurement=Measurement(times, times[::-1]), costs=costs), a_trial(1, verdict=UNCLEAR)]
    found = render_text(render_study(a_study(trials, decided=None)), width)
    table = found[found.index("speed-up") : found.index("Not tried")].partition("\nWhy")[0]
    row = rows(a_study(trials, decided=None))[-2]
    assert {"inductor", "freezing", "max_fusion_size=8"} <= set(table.split())
    for figure in (show.speedup(row.speedup), show.time(row.time)):
        low, _, high = figure.partition(" to ")
        assert high, f"{figure} is told, which tests nothing"
        assert f"{low} to" in table
        assert high in table


def test_the_decided_plan_is_above_eager_in_the_table() -> None:
    found = render_text(render_study(a_study())).splitlines()
    position = {
        name: next(i for i, line in enumerate(found) if line.strip().startswith(name)) for name in ("3 ", "eager ")
    }
    assert position["3 "] < position["eager "]


def test_no_color_leaves_no_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    found = render_text(render_study(a_study()), force_terminal=True)
    assert not {f"\x1b[{code}m" for code in (31, 32, 33, 36)} & set(found.split())
    assert "\x1b[32" not in found
    assert "decided" in found  # the meaning of colours is in words, too
    assert "failed" in found


def test_colour_is_there_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;32m" in render_text(render_study(a_study()), force_terminal=True, color_system="standard")


def test_escapes_and_markup_in_records_are_text() -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J[red]x[/red]"
    study = a_study(
        [a_failure(FailureKind.RAISED, message=hostile)],
        decided=None,
        workload=WorkloadSpec(f"live:{hostile}"),
        excluded=(hostile,),
        inspection=an_inspection(notes=(hostile,)),
    )
    found = render_text(render_study(study), force_terminal=True)
    assert "\x1b]" not in found
    assert "\x1b[2J" not in found
    assert "owned" not in found
    assert found.count("[red]x[/red]") >= 4


def test_escapes_in_a_decision_and_in_a_command_are_text() -> None:
    hostile = "\x1b[2Jx"
    best = a_trial(0, a_plan(options=((hostile, hostile),)), 1.7)
    study = a_study([best, a_trial(1)], workload=WorkloadSpec(hostile), decided=0, state=StudyState.INTERRUPTED)
    assert study.decision is not None
    study = replace(study, decision=replace(study.decision, reason=hostile))
    for width in WIDTHS:
        assert "\x1b[2J" not in render_text(render_study(study), width, force_terminal=True)


def test_what_was_not_tried_is_cut_short() -> None:
    found = render_text(render_study(a_study(excluded=tuple(f"plan {i}: because" for i in range(9)))))
    assert "plan 5: because" in found
    assert "plan 6: because" not in found
    assert "and 3 more" in found
    assert "more, in the page" not in render_text(render_study(a_study(excluded=("a: b",) * 6)))


def test_notes_of_the_inspection_and_what_disturbed_are_shown_once() -> None:
    note = "another process used the GPU"
    trials = [
        a_trial(i, a_plan(options=(("freezing", i),)), measurement=a_measurement(1.5, notes=(note,))) for i in range(5)
    ]
    found = words(render_text(render_study(a_study(trials, decided=None))))
    assert "the model is in training mode" in found
    assert found.count(note) == 1
    assert found.startswith("Ratios hold within about ±16.")


def test_a_command_is_broken_only_where_a_shell_allows_it() -> None:
    spec = WorkloadSpec("models/with a space.py:factory", calls=123_456_789, mode="training", restarts=12)
    found = render_text(render_study(a_study(decided=None, state=StudyState.INTERRUPTED, workload=spec)), 60)
    pasted = re.sub(r" \\ *\n", " ", found[found.index("\nNext") :]).splitlines()[2]
    assert shlex.split(pasted) == [
        *("torchwise", "tune", spec.target, "--device", "cpu", "--mode", "training"),
        *("--calls", "123456789", "--restarts", "12"),
    ]


@pytest.mark.parametrize(
    ("study", "sentence"),
    [
        (a_study(decided=None), "No decision yet: still searching, 10 trials finished."),
        (
            a_study([], decided=None, state=StudyState.INTERRUPTED),
            "No decision yet: interrupted before a decision, 0 trials finished.",
        ),
        (a_study([a_failure()], decided=-1), "Stay with eager: nothing pays back."),
        (a_study([a_trial(measurement=a_measurement(1.5, 1))], decided=0), "Run inductor: 1."),
    ],
)
@pytest.mark.parametrize("width", WIDTHS)
def test_partial_studies_are_shown(study: Study, sentence: str, width: int) -> None:
    assert sentence in words(render_text(render_study(study), width))


def test_a_decision_says_what_it_costs_and_where_it_holds() -> None:
    found = words(render_text(render_decision(a_decision(a_trial()))))
    assert "the first call takes 38.2 s more, 4.10 s with warm caches, error 2.1e-07 against the reference" in found
    assert "holds for zoo:vision.resnet50 on NVIDIA H200, torch 2.13.0+cu130" in found


def test_a_decision_for_eager_has_no_compile_cost() -> None:
    decision = a_decision()
    here = replace(decision.environment, gpu=None)
    found = render_text(render_decision(replace(decision, environment=here)))
    assert "first call" not in found
    assert "Xeon" in found
