"""The pages of the dashboard, drawn without a browser: their choices, content, live updates, and storage."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from builders import WRONG, a_plan, a_trial
from dashboard_samples import LAST, PLAIN, TARGET, a_filled_store, a_version
from torchwise.dashboard.serve import READ_ONLY
from torchwise.records import Interval, Standing, StudyState
from torchwise.report.studies import Order, select_studies
from torchwise.store import ReportKind, Storage, StudySummary, open_storage

TWICE = Interval(1.9, 2.0, 2.1)
HARDWARE = a_version("2.11.0", 1.5).environment.hardware


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> str:
    return a_filled_store(tmp_path_factory.mktemp("dashboard") / "store.db")


@pytest.fixture
def store(filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    own = shutil.copy(filled, tmp_path / "store.db")
    monkeypatch.setenv("TORCHWISE_STORE", str(own))
    monkeypatch.setattr(sys, "argv", ["app.py"])
    return str(own)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    st.cache_resource.clear()
    st.cache_data.clear()


def the_page(name: str, **parameters: str) -> AppTest:
    def draw(name: str) -> None:
        from torchwise.dashboard import app

        getattr(app, f"show_{name}")()

    drawn = AppTest.from_function(draw, args=(name,), default_timeout=60)
    for key, value in parameters.items():
        drawn.query_params[key] = value
    return drawn.run()


def html(drawn: AppTest) -> str:
    assert not drawn.exception
    return "".join(part.proto.body for part in drawn.get("html"))


def texts(drawn: AppTest) -> str:
    return " ".join(part.value for part in drawn.text)


@pytest.mark.usefixtures("store")
def test_the_list_leads_to_every_study_and_follows_a_target() -> None:
    drawn = the_page("studies")
    for number in range(1, 6):
        assert f'href="study?study={number}"' in html(drawn)
    drawn.text_input[0].set_value("zoo:tutorial.fusion_demo").run()
    assert 'href="study?study=5"' in html(drawn)
    assert 'href="study?study=1"' not in html(drawn)
    drawn.text_input[0].set_value("ResNet").run()
    assert re.findall(r'href="study\?study=(\d)">\d', html(drawn)) == ["3", "2", "1"]
    drawn.text_input[0].set_value("zoo:nothing").run()
    assert "No study yet of zoo:nothing" in html(drawn)


@pytest.mark.usefixtures("store")
def test_a_study_is_found_by_its_address_and_by_choice() -> None:
    drawn = the_page("study", study="1")
    assert "Torchwise study 1," in html(drawn)
    drawn.selectbox[0].select(2).run()
    assert "Torchwise study 2," in html(drawn)
    assert drawn.query_params["study"] == "2"


@pytest.mark.usefixtures("store")
def test_what_is_drawn_is_kept_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchwise.dashboard import app

    drawn: list[int] = []
    monkeypatch.setattr(app, "render_html_part", lambda found, _theme: drawn.append(found.id) or f"<p>{found.id}</p>")
    the_page("study", study="1")
    the_page("study", study="1")
    assert drawn == [1]
    the_page("study", study="2")
    assert drawn == [1, 2]


def test_a_search_that_runs_is_told_as_it_goes_on(store: str) -> None:
    drawn = the_page("study", study="5")
    assert "1 trial finished, running: inductor + channels_last for" in texts(drawn)
    with open_storage(store) as storage:
        storage.finish_trial(5, a_trial(1, LAST, 1.9))
    drawn.run()
    assert "2 trials finished, no trial is running" in texts(drawn)
    assert "1.90×" in html(drawn)


@pytest.mark.usefixtures("store")
def test_two_studies_of_one_target_are_compared_unasked() -> None:
    drawn = the_page("compare")
    assert "Studies 2 and 3" in html(drawn)
    assert "2 slower, 1 same" in html(drawn)
    drawn.selectbox[0].select(1).run()
    assert "Studies 1 and 3" in html(drawn)


@pytest.mark.usefixtures("store")
def test_a_history_marks_its_regressions() -> None:
    drawn = the_page("history", target=TARGET)
    assert "3 decisions, 1 regression." in html(drawn)
    drawn.selectbox[0].select("zoo:tutorial.fusion_demo").run()
    assert "is decided yet" in texts(drawn)


@pytest.mark.usefixtures("store")
def test_the_list_is_sorted_and_filtered_by_date() -> None:
    drawn = the_page("studies", since="2026-03-01", order="oldest first", until="no date")
    assert re.findall(r'href="study\?study=(\d)">\d', html(drawn)) == ["2", "3"]
    drawn.date_input[1].set_value(date(2026, 3, 31)).run()
    assert re.findall(r'href="study\?study=(\d)">\d', html(drawn)) == ["2"]
    assert drawn.query_params["until"] == "2026-03-31"
    drawn.date_input[0].set_value(date(2026, 3, 31)).run()
    assert "No study is of these days." in texts(drawn)
    drawn.date_input[0].set_value(None).run()
    drawn.selectbox[0].select(Order.FASTEST).run()
    assert re.findall(r'href="study\?study=(\d)">\d', html(drawn)) == ["2", "4", "1", "5"]
    assert "since" not in drawn.query_params


def test_a_range_without_a_figure_is_never_the_largest_speed_up() -> None:
    names = {"none": None, "range": Interval(8.0, 60.0, 500.0), "slow": Interval(1.1, 1.2, 1.3), "fast": TWICE}
    made = [
        StudySummary(n, name, "cpu", "inference", StudyState.DECIDED, 1, "inductor", speedup, 1e9 + n)
        for n, (name, speedup) in enumerate(names.items())
    ]
    by_order = {order: [one.target for one in select_studies(made, None, None, order)] for order in Order}
    assert by_order[Order.FASTEST] == ["fast", "slow", "range", "none"]
    assert by_order[Order.SLOWEST] == ["slow", "fast", "range", "none"]
    assert by_order[Order.NEWEST] == by_order[Order.OLDEST][::-1] == ["fast", "slow", "range", "none"]
    assert by_order[Order.TARGET] == sorted(names)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("name", "text"), [("kernels", "graph capture"), ("analyses", "Recommendation"), ("benchmarks", "side by side")]
)
def test_kept_reports_of_each_kind_are_shown(name: str, text: str) -> None:
    drawn = the_page(name)
    assert text in html(drawn)
    assert len(drawn.selectbox[0].options) == 1


@pytest.mark.parametrize(("page", "kind"), [("kernels", ReportKind.EXPLANATION), ("analyses", ReportKind.ANALYSIS)])
def test_a_link_to_a_report_that_is_gone_or_older_shows_no_other(
    page: str, kind: ReportKind, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_storage(store) as storage:
        (first,) = storage.reports(kind)
    gone = the_page(page, **{kind.value: str(first.id + 7)})
    assert f"there is no {kind} {first.id + 7}; " in gone.exception[0].message
    assert gone.get("html") == []
    newer = replace(first, id=first.id + 50, target="other.py:make")
    monkeypatch.setattr(Storage, "reports", lambda *_, **__: [newer])
    older = the_page(page, **{kind.value: str(first.id)})
    assert older.selectbox[0].value == first.id
    assert html(older)


@pytest.mark.parametrize("page", ["study", "compare", "history", "kernels", "analyses", "benchmarks"])
def test_an_empty_store_says_what_fills_it(page: str, store: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TORCHWISE_STORE", str(tmp_path / "empty.db"))
    assert "torchwise" in texts(the_page(page))


def read_approvals(store: str) -> dict[str, str]:
    with open_storage(store) as storage:
        return {str(ruling.plan): ruling.standing for ruling in storage.approvals(TARGET, "inference", HARDWARE)}


def rule(drawn: AppTest, plan: str, standing: str, by: str = "bob") -> None:
    drawn.selectbox[1].select(plan)
    drawn.radio[0].set_value(standing)
    drawn.text_input[0].set_value("calmer")
    drawn.text_input[1].set_value(by)
    drawn.button[0].click().run()


def test_a_plan_is_pinned_rejected_and_left_to_the_evidence(store: str) -> None:
    drawn = the_page("study", study="1")
    rule(drawn, PLAIN.id, "pinned")
    assert read_approvals(store) == {"inductor": Standing.PINNED}
    assert "calmer" in html(drawn)
    assert "<strong>In force:</strong> Run inductor: bob pinned it: calmer." in html(drawn)
    rule(drawn, LAST.id, "rejected")
    assert read_approvals(store) == {"inductor": Standing.PINNED, "inductor + channels_last": Standing.REJECTED}
    for plan in (PLAIN, LAST):
        rule(drawn, plan.id, "automatic")
    assert read_approvals(store) == {}
    assert "calmer" not in html(drawn)


def test_what_cannot_be_ruled_is_refused_in_words(store: str) -> None:
    with open_storage(store) as storage:
        wrong = a_trial(2, a_plan(scope="regional"), None, verdict=WRONG, reason="not proven: values")
        whole = a_version("2.9.0", 1.5)
        number = storage.import_study(replace(whole, trials=(*whole.trials, wrong))).id
    drawn = the_page("study", study=str(number))
    rule(drawn, wrong.plan.id, "pinned")
    assert "has not verified inductor + regional" in texts(drawn)
    drawn.button[0].click().run()
    drawn = the_page("study", study=str(number))
    drawn.button[0].click().run()
    assert "Choose a status first." in texts(drawn)
    rule(drawn, PLAIN.id, "approved", by=" ")
    assert "by is empty" in texts(drawn)
    assert read_approvals(store) == {}


def test_a_read_only_dashboard_has_nothing_to_rule_with(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["app.py", READ_ONLY])
    drawn = the_page("study", study="1")
    assert not drawn.button
    assert not drawn.radio
    assert "Read-only" in drawn.caption[0].value
    assert read_approvals(store) == {}
