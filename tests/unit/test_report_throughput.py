"""Samples, tokens and the share of the peak: in the study's views and while it runs."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from builders import a_study
from torchwise.records import StepWork, Study, Verdict
from torchwise.report import Progress, render_html, render_study
from torchwise.report.facts import throughput
from torchwise.report.study import throughputs
from torchwise.verify.updates import check_trajectories

TRAINED = Verdict((check_trajectories([[2.3, 2.1, 1.9]] * 4, [[2.3, 2.1, 1.9]] * 4, reduced=False),))
WORK = StepWork(samples=32, tokens=4096, flops=2e12, peak_flops=1e14)


def render_text(study: Study) -> str:
    console = Console(width=200, color_system=None, file=io.StringIO())
    with console.capture() as captured:
        console.print(render_study(study))
    return captured.get()


def test_a_step_gets_so_much_done_in_a_second() -> None:
    assert throughput(WORK, 0.1) == "320 samples/s, 41,000 tokens/s, 20 % of the peak of 100 TFLOP/s"
    assert throughput(replace(WORK, tokens=None, peak_flops=None), 0.5) == "64 samples/s"


def test_eager_and_the_decided_plan_are_shown_everywhere() -> None:
    study = a_study()
    with_work = replace(study, inspection=replace(study.inspection, work=WORK))
    lines = throughputs(with_work)
    assert len(lines) == 2
    assert lines[0].startswith("eager: ")
    assert lines[1].startswith(f"{with_work.decision.plan}: ")  # type: ignore[union-attr]
    for line in lines:
        assert line in render_text(with_work)
        assert line in render_html(with_work)


def test_of_other_workloads_nothing_is_said() -> None:
    assert throughputs(a_study()) == []
    assert "samples/s" not in render_text(a_study())


def test_it_is_said_while_the_search_runs() -> None:
    study = a_study()
    file = io.StringIO()
    with Progress(Console(file=file, width=300)) as progress:
        progress.finish_inspection(replace(study.inspection, work=WORK))
        progress.finish_trial(replace(study.trials[0], verdict=TRAINED))
    lines = [line for line in file.getvalue().splitlines() if "samples/s" in line]
    assert len(lines) == 2
    assert "; the loss goes from 2.3 to 1.9" in lines[1], "a busy machine adds the time of a stage"
