"""The figures of one study agree wherever they are shown, however noisy the machine was."""

from __future__ import annotations

import functools
import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from builders import a_plan, a_study, a_trial, an_inspection
from consistency import check_study
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Costs, Measurement, Study, Trial
from torchwise.records import format as show
from torchwise.records.answer import Answer
from torchwise.records.candidates import rows
from torchwise.report import render_study
from torchwise.report.document import Plot
from torchwise.report.html import render_page
from torchwise.report.study import plots, render_html, study_document
from torchwise.study.decision import decide
from torchwise.study.history import History

CALLS = 1_000_000


def noisy(eager_s: float, speedup: float, spread: float, seed: int, rounds: int = 40) -> Measurement:
    """Return pairs whose sides vary by a factor, each by itself, in a process where eager takes so long."""
    draw = np.random.default_rng(seed)
    eager = eager_s * np.exp(spread * draw.standard_normal(rounds))
    candidate = eager_s / speedup * np.exp(spread * draw.standard_normal(rounds))
    return Measurement(tuple(map(float, candidate)), tuple(map(float, eager)), notes=("the machine is noisy",))


def decide_study(*trials: Trial, eager: Measurement) -> Study:
    """Return a study of these trials, decided as a search decides."""
    workload = WorkloadSpec("zoo:vision.resnet50", device="cpu", calls=CALLS)
    study = a_study(trials, decided=None, workload=workload, inspection=an_inspection(measurement=eager))
    return replace(study, decision=decide(History(workload, study.inspection, study.trials), study.environment))


def trial(number: int, measurement: Measurement, cold_s: float = 2.0, peak: int = 1_824_522) -> Trial:
    plan = a_plan(options=(("freezing", number),))
    return a_trial(number, plan, measurement=measurement, costs=Costs(cold_s, 1.0, peak, 3_738_000 + 4096 * number))


def render_text(study: Study, width: int = 300) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(render_study(study))
    return file.getvalue()


def draw_study(seed: int) -> Study:
    """Return a study of plans of any speed, in processes of any noise."""
    draw = np.random.default_rng(seed)
    processes = [(draw.uniform(0.3e-3, 3e-3), draw.uniform(0.5, 8), draw.choice([0.01, 0.1, 1.0])) for _ in range(5)]
    trials = [trial(number, noisy(*process, 99 * number + seed)) for number, process in enumerate(processes)]
    return decide_study(*trials, eager=noisy(1e-3, 1.0, 0.05, seed))


STUDIES = {
    "each process has an eager of its own": decide_study(
        trial(0, noisy(1.8e-3, 1.71, 0.02, 1)),
        trial(1, noisy(1.22e-3, 1.38, 0.02, 2)),
        trial(2, noisy(0.9e-3, 0.7, 0.02, 3)),
        eager=noisy(1.15e-3, 1.0, 0.02, 4),
    ),
    "a wide interval far above one": decide_study(
        trial(0, noisy(1e-3, 60.0, 1.2, 5, 12)), trial(1, noisy(2e-3, 2.0, 0.02, 6)), eager=noisy(1e-3, 1.0, 0.1, 7)
    ),
    "garbage": decide_study(
        trial(0, noisy(1e-3, 1.3, 2.0, 8)), trial(1, noisy(5e-3, 0.9, 2.0, 9)), eager=noisy(1e-3, 1.0, 2.0, 10)
    ),
    "eager was held up in the inspection": decide_study(
        trial(0, noisy(1e-3, 2.0, 0.05, 11)), eager=noisy(88e-3, 1.0, 0.5, 12)
    ),
    "compiling costs more than it saves": decide_study(
        trial(0, noisy(1e-6, 1.01, 0.001, 13, 200), cold_s=500.0), eager=noisy(1e-6, 1.0, 0.001, 14)
    ),
    "as drawn": a_study(),
    **{f"drawn {seed}": draw_study(seed) for seed in range(12)},
}


@functools.cache
def draw_page(name: str) -> tuple[list[Plot], str]:
    """Draw the plots of a study by its name, and its page with them, once for all tests."""
    found = plots(STUDIES[name])
    return found, render_page(study_document(STUDIES[name], plots=found))


@pytest.mark.parametrize("name", STUDIES)
def test_no_two_figures_of_a_study_disagree(name: str) -> None:
    check_study(STUDIES[name], render_text(STUDIES[name]), draw_page(name)[1])


@pytest.mark.parametrize("name", STUDIES)
def test_plots_name_one_plan_as_the_fastest(name: str) -> None:
    found = {plot.key: plot for plot in draw_page(name)[0]}
    fastest, quickest = found["speedup"].summary, found["latency"].summary
    if "is the fastest" in fastest and "eager has" not in quickest:
        plan = fastest.partition(" plan ")[2] or fastest.partition(" plans ")[2]
        assert quickest.startswith(plan.partition(" is the fastest")[0])


def test_what_cannot_be_told_is_no_decision() -> None:
    study = STUDIES["garbage"]
    assert study.decision is not None
    assert study.decision.answer is Answer.INCONCLUSIVE
    found = render_text(study)
    assert "─ Inconclusive ─" in found
    assert "too uncertain: the machine is noisy; 3 of 3 ratios are only ranges." in " ".join(found.split())


@pytest.mark.parametrize("where", ["text", "page"])
def test_the_checker_sees_a_time_on_another_scale(where: str) -> None:
    study = STUDIES["each process has an eager of its own"]
    text, page = render_text(study), render_html(study)
    right = show.time(next(row.time for row in rows(study) if row.is_decided))
    assert right in text
    assert right in page
    if where == "text":
        text = text.replace(right, "1.05 ms")
    else:
        page = page.replace(f">{right}<", ">1.05 ms<")
    with pytest.raises(AssertionError, match="disagree"):
        check_study(study, text, page)


def test_the_checker_sees_savings_of_other_times() -> None:
    study = STUDIES["each process has an eager of its own"]
    assert study.decision is not None
    said = f"saves about {show.seconds(study.decision.saved_s)}"
    text = " ".join(render_text(study, 1000).split())
    assert said in text
    with pytest.raises(AssertionError, match="where the shown times give"):
        check_study(study, render_text(study, 1000).replace(said, "saves about 17 min"), render_html(study))
