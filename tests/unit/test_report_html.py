"""The page: well-formed, self-contained, escaped, accessible, and there for partial records too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from builders import (
    EAGER_S,
    WRONG,
    a_decision,
    a_failure,
    a_measurement,
    a_plan,
    a_study,
    a_trial,
    an_inspection,
    some_trials,
)
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind, Outcome, Study, StudyState, TrialState
from torchwise.records.verdict import Check, Verdict
from torchwise.report.plots import study as study_plots
from torchwise.report.plots.drawing import VARIABLES, WIDTH, adapt_svg, round_times
from torchwise.report.study import plots, render_html

VOID = {"meta", "br", "img", "link", "hr", "input"}
HOSTILE = (
    "\"'><script>alert(1)</script><img src=http://evil.test/x onerror=alert(2)>\x1b[31m{{ 7*7 }}\u202e]]>&amp;\x00"
)
PARTIAL = {
    "running, nothing tried": a_study([], decided=None),
    "running": a_study(
        [a_trial(0, state=TrialState.RUNNING, measurement=None, verdict=None, costs=None)], decided=None
    ),
    "interrupted": a_study(decided=None, state=StudyState.INTERRUPTED),
    "all failed": a_study([a_failure(kind, number) for number, kind in enumerate(FailureKind)], decided=-1),
    "one round": a_study([a_trial(measurement=a_measurement(1.5, 1))], decided=0),
    "no rounds": a_study(
        [a_trial(measurement=a_measurement(candidate_s=(), baseline_s=()))],
        decided=None,
        inspection=an_inspection(
            measurement=a_measurement(candidate_s=(), baseline_s=()), inputs=(), traits=frozenset()
        ),
    ),
    "many": a_study(
        [a_trial(i, a_plan(options=(("freezing", i),)), 1 + i / 20) for i in range(30)], decided=29, excluded=()
    ),
}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        found = [self] if self.tag == tag else []
        return found + [e for child in self.children for e in child.all(tag)]

    def whole_text(self) -> str:
        return " ".join([self.text, *(child.whole_text() for child in self.children)]).strip()


class Page(HTMLParser):
    """Parses a page strictly: every element is closed, and by its own end tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("root", {})
        self._open = [self.root]
        self.feed(text)
        self.close()
        assert len(self._open) == 1, f"{self._open[-1].tag} is never closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        element = Element(tag, dict(attrs))
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"{tag} ends where {self._open[-1].tag} is open"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].text += data


def elements(element: Element) -> list[Element]:
    return [element, *(e for child in element.children for e in elements(child))]


@pytest.fixture(scope="module")
def text() -> str:
    return render_html(a_study())


@pytest.fixture(scope="module")
def page(text: str) -> Element:
    return Page(text).root


def hostile_study() -> Study:
    plan = a_plan(options=((HOSTILE, HOSTILE), ("$x_1$", "$\\frac{")))
    failure = Failure(FailureKind.RAISED, HOSTILE, HOSTILE * 5, HOSTILE)
    verdict = Verdict((Check(HOSTILE, Outcome.FAIL, HOSTILE, 1.0, 1.0),))
    spec = WorkloadSpec(HOSTILE, device="cuda")
    timed = a_trial(0, plan, 1.5, measurement=a_measurement(1.5, notes=(HOSTILE,)), reason=HOSTILE)
    return a_study(
        [
            timed,
            a_trial(1, a_plan(scope="regional"), None, state=TrialState.FAIL, failure=failure, reason=HOSTILE),
            a_trial(2, a_plan(shapes="dynamic"), None, verdict=verdict),
        ],
        workload=spec,
        decided=0,
        decision=a_decision(timed, spec, reason=HOSTILE),
        excluded=(HOSTILE,),
        inspection=an_inspection(description=HOSTILE, inputs=(HOSTILE,), notes=(HOSTILE,), shares={HOSTILE: 0.5}),
    )


@pytest.mark.parametrize("study", [a_study(), hostile_study(), *PARTIAL.values()])
def test_the_page_is_well_formed_and_ids_are_unique_and_met(study: Study) -> None:
    found = elements(Page(render_html(study)).root)
    ids = [e.attributes["id"] for e in found if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    wanted = {e.attributes["href"][1:] for e in found if (e.attributes.get("href") or "").startswith("#")}  # type: ignore[index]
    wanted |= {e.attributes["aria-labelledby"] for e in found if "aria-labelledby" in e.attributes}
    wanted |= {m for e in found for v in e.attributes.values() if v for m in re.findall(r"url\(#([^)]+)\)", v)}
    assert wanted <= set(ids)


@pytest.mark.parametrize("study", [a_study(), hostile_study(), *PARTIAL.values()])
def test_nothing_is_fetched_and_nothing_runs(study: Study) -> None:
    found = elements(Page(render_html(study)).root)
    for element in found:
        assert element.tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "form", "image")
        assert not any(name.startswith("on") for name in element.attributes)
        for name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            assert (element.attributes.get(name) or "#").startswith("#")
        style = f"{element.attributes.get('style')} {element.text if element.tag == 'style' else ''}"
        assert not re.search(r"@import|url\((?!#)", style)


def test_the_browser_is_told_to_fetch_nothing(page: Element) -> None:
    policies = [e.attributes["content"] for e in page.all("meta") if e.attributes.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_hostile_text_is_shown_as_text() -> None:
    text = render_html(hostile_study())
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)
    found = Page(text).root
    assert "<script>alert(1)</script>" in found.all("h1")[0].text
    assert "{{ 7*7 }}" in found.all("h1")[0].text
    assert any("<script>alert(1)</script>" in e.text for e in found.all("code"))


def test_a_dollar_in_a_name_is_no_formula() -> None:
    found = Page(render_html(a_study([a_trial(0, a_plan(options=(("$x_1$", "y^"),)))]))).root
    assert "inductor + $x_1$=y^" in {e.text for e in found.all("text")}


def test_the_decision_comes_first_with_its_figures(page: Element) -> None:
    first = page.all("section")[0].whole_text()
    for part in (
        "Run inductor + channels_last: 1.71",
        "1.71× [1.45, 2.02]",
        "7,426 calls",
        "38.2 s",
        "4.10 s",
        "2.1e-07",
    ):
        assert part in first


def test_the_table_of_candidates_has_headers_with_scopes_and_every_row(page: Element) -> None:
    table = next(e for e in page.all("table") if e.attributes.get("class") == "candidates")
    header, *rows = table.all("tr")
    assert [e.attributes["scope"] for e in header.all("th")] == ["col"] * 8
    assert len(rows) == 11
    for row in rows:
        assert [e.attributes["scope"] for e in row.all("th")] == ["row"]
        assert len(row.all("td")) == 7
    assert "inductor + channels_last" in rows[0].whole_text()
    assert rows[0].attributes["class"] == "decided"
    assert "its process died in compile: SIGSEGV" in table.whole_text()
    assert "error 3.2e-01, floor 1.9e-07" in table.whole_text()


def test_every_cell_of_every_table_has_a_scope_or_is_data(page: Element) -> None:
    assert all(e.attributes.get("scope") in ("col", "row") for e in page.all("th"))
    assert all(e.all("caption") or e.attributes.get("aria-labelledby") for e in page.all("table"))


def test_each_plot_has_a_name_a_caption_and_its_figures(page: Element) -> None:
    figures = page.all("figure")
    assert [e.attributes["id"] for e in figures] == ["plot-speedup", "plot-latency", "plot-cost"]
    for figure in figures:
        (svg,) = figure.all("svg")
        (caption,) = figure.all("figcaption")
        assert svg.attributes["role"] == "img"
        assert svg.attributes["aria-label"]
        assert (svg.attributes["aria-label"] or "?") in caption.whole_text()
        assert figure.all("details")[0].all("table")[0].all("td")
        assert [e.text for e in svg.all("text")]


def test_plots_take_every_colour_from_the_page_and_the_page_has_each_for_light_and_dark(page: Element) -> None:
    css = page.all("style")[0].text
    for svg in page.all("svg"):
        for element in elements(svg):
            colors = re.findall(r"(?:fill|stroke): ([^;]+)", element.attributes.get("style") or "")
            assert {c for c in colors if c != "none"} <= set(VARIABLES.values())
    for variable in VARIABLES.values():
        assert css.count(f"{variable[4:-1]}:") == 2
    assert "prefers-color-scheme: dark" in css


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Axes]:
    """Return the axes of every plot that is drawn from now on, by its key."""
    found: dict[str, Axes] = {}

    def draw(key: str, label: str, height: float, paint: Callable[[Axes], None]) -> str:
        found[key] = Figure().add_subplot()
        paint(found[key])
        return "<svg></svg>"

    monkeypatch.setattr(study_plots, "draw", draw)
    return found


def points(axes: Axes, marker: str = "o") -> list[tuple[float, float]]:
    """Return the positions of single markers."""
    lines = [line for line in axes.lines if line.get_marker() == marker and len(line.get_xdata()) == 1]
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines]


def test_the_speedup_plot_marks_one_and_what_is_not_proven(drawn: dict[str, Axes]) -> None:
    study = a_study([a_trial(0), a_trial(1, a_plan(scope="regional"), verdict=WRONG)])
    plots(study)
    assert 1 in [line.get_xdata()[0] for line in drawn["speedup"].lines if line.get_marker() == "None"]
    faces = [line.get_markerfacecolor() for line in drawn["speedup"].lines if line.get_marker() == "o"]
    assert faces == ["#050505", "none"]
    middles = [t.measurement.speedup.mid for t in study.trials if t.measurement]
    assert [x for x, _ in points(drawn["speedup"])] == middles


def test_a_plan_that_is_not_proven_is_never_called_the_fastest() -> None:
    wrong, right = a_trial(0, speedup=3.0, verdict=WRONG), a_trial(1, a_plan(scope="regional"), 1.2)
    speeds, latencies, _ = plots(a_study([wrong, right], decided=1))
    assert speeds.summary.startswith("inductor + regional is the fastest of 1 verified plan, at 1.")
    assert latencies.summary.startswith("inductor + regional has the shortest")
    alone, latencies = plots(a_study([wrong], decided=-1))
    assert alone.summary == "No plan was verified and timed precisely enough to be ranked."
    assert latencies.summary.startswith("eager has the shortest")


def test_no_other_plan_is_called_the_fastest_where_the_range_of_one_is_beyond_it() -> None:
    wide = a_measurement(candidate_s=(1e-3, 6e-3) * 6, baseline_s=(EAGER_S,) * 12)
    unclear = a_trial(0, a_plan(scope="regional"), measurement=wide)
    assert unclear.speedup is not None
    assert unclear.speedup.low > 1
    assert not unclear.speedup.is_usable
    speeds, latencies, *_ = plots(a_study([unclear, a_trial(1, speedup=1.2)], decided=0))
    assert speeds.summary.startswith("inductor + regional may be the fastest, at ")
    assert latencies.summary.startswith("inductor + regional may have the shortest time per call, ")
    speeds, latencies = plots(a_study([unclear], decided=0))
    assert speeds.summary == "No plan was verified and timed precisely enough to be ranked."
    assert latencies.summary.startswith("inductor + regional may have the shortest time per call, ")


def test_the_cost_plot_marks_the_expected_calls_and_where_a_plan_pays_back(drawn: dict[str, Axes]) -> None:
    study = a_study([a_trial(0)], decided=0)
    plots(study)
    assert study.decision is not None
    assert study.decision.break_even_calls is not None
    upright = [list(line.get_xdata()) for line in drawn["cost"].lines if len(line.get_xdata()) == 2]
    assert upright == [[100_000, 100_000]]
    ((calls, spent),) = points(drawn["cost"])
    assert calls == pytest.approx(study.decision.break_even_calls.mid)
    assert spent == pytest.approx(calls * study.decision.baseline_s)


def test_the_cost_plot_leaves_out_what_is_not_faster_unless_nothing_is() -> None:
    def names(study: Study) -> list[str]:
        return [line[0] for plot in plots(study) if plot.key == "cost" for line in plot.table]

    assert "eager + capture call" not in names(a_study())
    assert "inductor + regional" not in names(a_study())  # pruned, so not verified
    assert names(a_study([a_trial(0, speedup=0.8)], decided=-1)) == ["eager", "inductor"]


def test_a_spread_of_one_round_is_not_made_up(drawn: dict[str, Axes]) -> None:
    plots(PARTIAL["one round"])
    assert len(drawn["latency"].collections) == 3  # the bars of eager alone, which has sixty


def test_the_cost_plot_tells_where_a_plan_pays_back() -> None:
    study = a_study([a_trial(0)], decided=0)
    assert study.decision is not None
    assert study.decision.break_even_calls is not None
    plot = next(plot for plot in plots(study) if plot.key == "cost")
    calls = f"{float(f'{study.decision.break_even_calls.mid:.3g}'):,.0f}"
    assert plot.summary.startswith("inductor is the first to pay back, after ")
    assert plot.table[1][0] == "inductor"
    assert plot.table[1][3].split()[0].replace(",", "")[:3] == calls.replace(",", "")[:3]
    assert "100,000 calls are expected" in plot.summary


def test_a_plot_holds_no_more_than_can_be_told_apart_and_the_decided_plan_always() -> None:
    study = PARTIAL["many"]
    speeds, latencies, costs, *_ = plots(study)
    assert (len(speeds.table), len(costs.table)) == (12, 7)
    assert len(latencies.table) == 1 + 2 * 12
    assert {plot.table[i][0] for plot, i in ((speeds, 0), (latencies, 1), (costs, 1))} == {"inductor + freezing=29"}
    slow = a_trial(99, a_plan(scope="regional"), 1.01)
    many = a_study((*study.trials, slow), decided=99)
    assert all("inductor + regional" in {line[0] for line in plot.table} for plot in plots(many)[:2])


@pytest.mark.parametrize(("name", "keys"), [("all failed", ["latency"]), ("no rounds", []), ("one round", None)])
def test_plots_that_have_no_records_are_left_out(name: str, keys: list[str] | None) -> None:
    assert [plot.key for plot in plots(PARTIAL[name])] == (["speedup", "latency", "cost"] if keys is None else keys)


def test_each_trial_has_the_command_that_repeats_it(page: Element) -> None:
    trials = [e for e in page.all("details") if e.attributes.get("class") == "trial"]
    plans = []
    for trial in trials:
        words = shlex.split(trial.all("code")[0].text)
        plans.append(Plan.from_json(words[words.index("--plan") + 1]))
    assert len(plans) == len(some_trials())
    assert set(plans) == {trial.plan for trial in some_trials()}


def test_a_live_model_gets_python_instead() -> None:
    found = Page(render_html(a_study(workload=WorkloadSpec("live:Net", device="cuda")))).root
    commands = [e.all("code")[0].text for e in found.all("details") if e.attributes.get("class") == "trial"]
    assert len(commands) == len(some_trials())
    assert all("torchwise.tune(model, args, plans=[plan]" in command for command in commands)


def test_a_trial_shows_choices_checks_and_the_traceback() -> None:
    study = a_study([a_failure(FailureKind.RAISED, traceback="Traceback: line 1\nline 2"), a_trial(1, verdict=WRONG)])
    text = Page(render_html(study)).root.whole_text()
    assert "Traceback: line 1\nline 2" in text
    assert "torch.compile with Inductor" in text
    assert "outputs of 3 calls stay as they were" in text


def test_a_plan_of_another_version_is_shown_all_the_same() -> None:
    text = render_html(a_study([a_trial(0, a_plan(transforms=("from_the_future",)))]))
    assert "which no choice of this version describes" in text


def test_environment_inspection_notes_and_what_was_not_tried_are_there(page: Element) -> None:
    text = page.whole_text()
    for part in (
        "NVIDIA H200",
        "2.13.0+cu130",
        "140 GiB",
        "convolutions 57 %, matrix products 10 %, no kernel running 8.0 %",
        "the model is in training mode",
        "the clock of the GPU fell by 11 %",
        "tf32: it is lower-precision, and only up to same-precision is allowed",
        "The search took 21 min 52 s, in which eager answers ",
        "2026-02-25",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("running", "No decision yet: still searching, 0 trials finished."),
        ("interrupted", "No decision yet: interrupted before a decision, 10 trials finished."),
        ("all failed", "Stay with eager: nothing pays back."),
    ],
)
def test_a_study_without_a_plan_says_so(name: str, sentence: str) -> None:
    assert sentence in render_html(PARTIAL[name])


def test_the_same_study_gives_the_same_page(text: str) -> None:
    assert render_html(a_study()) == text


def test_a_page_stays_small_however_many_rounds_there_were() -> None:
    trials = [
        a_trial(i, a_plan(options=(("freezing", i),)), 1.5, measurement=a_measurement(1.5, 1000)) for i in range(5)
    ]
    assert len(render_html(a_study(trials))) < 400_000


def test_an_svg_is_adapted_and_nothing_else() -> None:
    svg = (
        b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        b'width="9pt" height="9pt" viewBox="0 0 9 9"><metadata>x</metadata><defs><style>*{}</style>'
        b'<path id="m" style="stroke: #010101"/></defs><use xlink:href="#m" clip-path="url(#c)"/>'
        b"<text style=\"font: 700 9.5px 'DejaVu Sans', serif; text-anchor: start\">#010101 &lt;b&gt;</text></svg>"
    )
    assert adapt_svg(svg, "k", "a <label>") == (
        '<svg viewBox="0 0 9 9" style="stroke-linejoin:round;stroke-linecap:butt" role="img" '
        'aria-label="a &lt;label&gt;">'
        '<defs><path id="k-m" style="stroke: var(--ink)" /></defs><use href="#k-m" clip-path="url(#k-c)" />'
        '<text style="font-size: 9.5px; text-anchor: start">#010101 &lt;b&gt;</text></svg>'
    )


def test_text_is_large_enough_for_a_phone(page: Element) -> None:
    """A drawing as wide as a phone's screen (360 pixels) must not shrink its text under 9 pixels."""
    scale = 360 / (WIDTH * 72)
    sizes = [
        float(n)
        for svg in page.all("svg")
        for e in svg.all("text")
        for n in re.findall(r"font-size: ([\d.]+)", e.attributes["style"] or "")
    ]
    assert min(sizes) * scale >= 9


def test_times_are_marked_where_people_count() -> None:
    assert round_times(0.01, 4000) == [0.01, 0.1, 1, 10, 60, 600, 3600]
    assert round_times(0.9e-3, 11e-3) == [0.001, 0.002, 0.005, 0.01]
