"""The plot of accuracy lost for speed won: when it is drawn, its points, its line, and its words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import a_study, a_trial
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check, CheckName, Figure, Outcome, Study, Trial, Verdict
from torchwise.report.document import Plot
from torchwise.report.plots import accuracy
from torchwise.report.study import plots, render_html

INDUCTOR, INT8, INT4 = Plan(backend="inductor"), Plan(transforms=("int8_dynamic",)), Plan(transforms=("int4_weights",))


def tried(number: int, plan: Plan, speedup: float | None, error: float, **figures: float) -> Trial:
    outcome = Outcome.FAIL if speedup is None else Outcome.PASS
    named = {Figure(name): value for name, value in figures.items()}
    check = Check(CheckName.SUBSTITUTION, outcome, "judged", error=error, floor=0.0, figures=named)
    return a_trial(number, plan, speedup, verdict=Verdict((check,)))


def study_of(*trials: Trial, **spec: Any) -> Study:
    return a_study(trials, decided=1, workload=WorkloadSpec("zoo:tutorial.fusion_demo", **spec))


TRIALS = (tried(0, INDUCTOR, 1.2, 3e-7), tried(1, INT8, 1.9, 0.009), tried(2, INT4, None, 0.07))


def plot_of(study: Study) -> Plot | None:
    return next((plot for plot in plots(study) if plot.key == "accuracy"), None)


def test_each_plan_is_a_point_and_the_limit_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    real = accuracy.draw

    def draw(key: str, label: str, height: float, paint: Any) -> str:
        return real(key, label, height, lambda axes: (paint(axes), drawn.append(axes)))

    monkeypatch.setattr(accuracy, "draw", draw)
    plot = plot_of(study_of(*TRIALS, tolerance=0.02))
    assert plot is not None
    (axes,) = drawn
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert sorted(float(dot.get_ydata()[0]) for dot in dots) == [3e-7, 0.009]
    assert [0.02, 0.02] in [list(line.get_ydata()) for line in axes.lines]
    assert "is the fastest verified plan, at 1.90× for an error of 9.0e-03" in plot.summary
    assert "inductor is the most accurate of those that lead" in plot.summary
    assert "the allowed 0.02" in plot.caption
    assert [(line[0], line[2], line[3]) for line in plot.table] == [
        ("eager + int8_dynamic", "9.0e-03", "passed"),
        ("inductor", "3.0e-07", "passed"),
        ("eager + int4_weights", "7.0e-02", "failed"),
    ]
    assert "mathdefault" not in plot.svg, "a page shows the marks of mathematics as they are"
    assert "Accuracy lost for speed won" in render_html(study_of(*TRIALS, tolerance=0.02))


def test_it_is_drawn_only_where_a_plan_may_lose_more_than_roundings() -> None:
    assert plot_of(study_of(TRIALS[0])) is None
    assert plot_of(study_of(TRIALS[2])) is None, "nothing was timed"
    assert plot_of(study_of(tried(0, Plan(precision="bf16"), 1.5, 4e-3))) is not None
    lower = plot_of(study_of(*TRIALS))
    assert lower is not None
    assert "allowed" not in lower.caption


def test_with_a_metric_its_loss_is_drawn() -> None:
    trials = (TRIALS[0], tried(1, INT8, 1.9, 0.009, metric_lost=0.004))
    plot = plot_of(study_of(*trials, tolerance=0.01, metric="a.b:c"))
    assert plot is not None
    assert "1.90× for a loss of 0.4 % of the metric" in plot.summary
    assert [line[2] for line in plot.table] == ["4.0e-03", "0"]


def test_a_loss_that_nobody_measured_is_not_stated() -> None:
    metric = "a.b:c"
    assert accuracy.measure_loss(TRIALS[0], metric) == 0.0
    assert accuracy.measure_loss(TRIALS[1], metric) is None, "it has no figure of the metric"
    assert accuracy.measure_loss(tried(0, Plan(precision="bf16"), 1.5, 4e-3), metric) is None
    assert accuracy.measure_loss(tried(0, INDUCTOR, None, 0.5), metric) is None, "it was refused"
    assert accuracy.measure_loss(tried(0, INT4, None, 0.5, metric_lost=0.3), metric) == 0.3


def test_a_plan_that_eager_beats_in_both_leads_nowhere() -> None:
    plot = plot_of(study_of(tried(0, INT4, 0.8, 0.01), tolerance=0.02))
    assert plot is not None
    assert plot.summary.startswith("No plan that beats eager")


def test_a_plan_that_another_beats_in_both_is_off_the_line() -> None:
    beaten = tried(3, Plan(transforms=("int8_weights",)), 1.5, 0.02)
    study = study_of(*TRIALS, beaten)
    found = accuracy.accuracy_plot(study)
    assert found is not None
    points = [
        accuracy._Point(series, series.row.speedup, accuracy.measure_loss(series.row.trial, None) or 0.0)
        for series in accuracy.series_of(study)
        if series.row.trial and series.row.speedup
    ]
    assert [point.series.row.plan for point in accuracy.list_best(points)] == [INT8, INDUCTOR]
    unverified = [
        replace(point, series=replace(point.series, row=replace(point.series.row, standing="ineligible")))
        for point in points
    ]
    assert accuracy.list_best(unverified) == []
