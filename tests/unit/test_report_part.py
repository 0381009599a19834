"""Pages as parts of another page: one theme, drawings as images, style that touches nothing else, words escaped."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ElementTree
from datetime import date
from typing import Literal

import pytest

from builders import CREATED_AT, a_study, a_trial
from dashboard_samples import EVIL, LAST, PLAIN
from explain_samples import explanation, make_finding, price
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Interval, StudyState, TrialState
from torchwise.report.explanation import render_explanation_part
from torchwise.report.studies import Order, progress, render_studies, select_studies, to_csv
from torchwise.report.study import render_html_part
from torchwise.store import StudySummary


@pytest.fixture(scope="module", params=["light", "dark"])
def part(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param, render_html_part(a_study(workload=WorkloadSpec(EVIL)), request.param)


def drawings(text: str) -> list[str]:
    return [base64.b64decode(found).decode() for found in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)]


def test_a_part_has_no_shell_and_its_drawings_are_images(part: tuple[str, str]) -> None:
    _, text = part
    assert not re.search(r"<(html|head|body|script|link|svg)\b", text)
    assert len(drawings(text)) == 3
    for drawing in drawings(text):
        assert ElementTree.fromstring(drawing).tag == "{http://www.w3.org/2000/svg}svg"
    assert re.search(r'<img alt="[^"]+ is the fastest of 5 verified plans', text)


def test_a_drawing_has_the_colours_of_the_theme(part: tuple[str, str]) -> None:
    theme, text = part
    ink, other = ("#16191d", "#e8eaed") if theme == "light" else ("#e8eaed", "#16191d")
    for drawing in drawings(text):
        assert "var(--" not in drawing
        assert ink in drawing
        assert other not in drawing


def test_the_style_holds_for_the_part_alone_and_does_not_ask_the_browser(part: tuple[str, str]) -> None:
    theme, text = part
    style = text[text.index("<style>") : text.index("</style>")]
    assert style.lstrip("<style>\n").startswith(".torchwise {")
    assert not re.search(r"(?m)^\s*(:root|body) \{", style)
    assert "prefers-color-scheme" not in style
    assert ("@media not all" in style) == (theme == "light")
    assert style.count("{") == style.count("}")


def test_every_word_of_a_record_is_escaped(part: tuple[str, str]) -> None:
    _, text = part
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_explanation_is_a_part_too(theme: Literal["light", "dark"]) -> None:
    text = render_explanation_part(explanation(make_finding("guards", price(2e-3))), theme)
    assert "graph capture" in text
    assert not re.search(r"<(html|svg)\b", text)


def test_no_study_yet_is_said_with_what_makes_one() -> None:
    assert "torchwise tune TARGET" in render_studies([], "here", "light", target=None, max_count=9)
    assert "No study yet of zoo:x" in render_studies([], "here", "light", target="zoo:x", max_count=9)


def test_a_list_that_is_cut_says_so_and_its_export_is_whole() -> None:
    found = [
        StudySummary(n, "=a,b", "cpu", "inference", StudyState.DECIDED, 2, "eager", speedup, n * 86_400.0)
        for n, speedup in ((1, None), (2, Interval(1.0, 1.5, 2.0)))
    ]
    oldest = select_studies(found, None, None, Order.OLDEST)
    page = render_studies(oldest, "here", "light", target=None, max_count=1, order=Order.OLDEST)
    assert "Oldest first" in page
    assert "These are the first 1 studies." in page
    assert "study?study=2" not in page
    assert to_csv(select_studies(found, date(1970, 1, 3), date(1970, 1, 3), Order.NEWEST)).splitlines()[1:] == [
        '2,"=a,b",inference,cpu,decided,2,eager,1.5,1.0,2.0,1970-01-03T00:00:00+00:00'
    ]
    assert [one.id for one in select_studies(found, None, None, Order.SLOWEST)] == [2, 1]


def test_how_far_a_search_is_in_a_sentence() -> None:
    tried = a_trial(1, LAST, None, state=TrialState.RUNNING, started_at=CREATED_AT + 90)
    running = a_study((a_trial(0, PLAIN, 1.3), tried), decided=None)
    assert progress(running, CREATED_AT + 100) == (
        "Searching for 1 min 40 s: 1 trial finished, running: inductor + channels_last for 10.0 s, "
        "the best plan so far is 1.30× as fast as eager."
    )
    fresh = a_study((), decided=None)
    assert progress(fresh, CREATED_AT + 2).endswith("no trial is running, no plan is verified yet.")
