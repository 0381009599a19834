"""The script that Streamlit runs for each view: the pages with their URLs, and the form for approvals."""

from __future__ import annotations

import contextlib
import getpass
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from typing import Any, TypeVar

import streamlit as st

from torchwise.dashboard.serve import READ_ONLY
from torchwise.errors import TorchwiseError
from torchwise.plan import Plan
from torchwise.records import Standing, Study, StudyState
from torchwise.records import format as show
from torchwise.records.candidates import Row, rows
from torchwise.report.analysis import render_analysis_part
from torchwise.report.bench import render_bench_part
from torchwise.report.explanation import render_explanation_part
from torchwise.report.facts import when
from torchwise.report.html import Theme
from torchwise.report.studies import (
    Order,
    progress,
    render_approvals,
    render_history,
    render_studies,
    render_study_diff,
    select_studies,
    to_csv,
)
from torchwise.report.study import render_html_part
from torchwise.store import ReportKind, ReportSummary, Storage, StudySummary, default_url, open_storage
from torchwise.store.reports import COMMANDS
from torchwise.study.apply_approvals import apply_approvals, make_approval

T = TypeVar("T")

MAX_COUNT = 200
"""Maximum number of studies in a list. Filters find others."""
MAX_TARGET = 80
"""Maximum characters of a target in a choice. A benchmark may have many targets."""
SUBJECTS = ("study", "first", "second", "target", *ReportKind)
"""Parameters of a URL that name its subject, and so belong in the title."""
LIST_EVERY_S = 5
STUDY_EVERY_S = 2
AUTOMATIC = "automatic"
MEANINGS = {
    AUTOMATIC: "no approval: the measurements decide",
    Standing.PINNED.value: "run only this plan",
    Standing.APPROVED.value: "permit this plan: plans without approval no longer run",
    Standing.REJECTED.value: "never run this plan",
}
MAX_DRAWN = 40
"""Maximum number of studies to draw. Each is read with all its samples."""


def open_store() -> Storage:
    """Return the store of this server."""
    return _storage(default_url())


@st.cache_resource(show_spinner=False)
def _storage(url: str) -> Storage:
    return open_storage(url)


def is_read_only() -> bool:
    """Return whether approvals cannot be changed here."""
    return READ_ONLY in sys.argv[1:]


def read_theme() -> Theme:
    """Return the visitor's chosen theme, or their system's."""
    return "dark" if st.context.theme.type == "dark" else "light"


def list_studies(target: str | None = None) -> list[StudySummary]:
    """Return the newest studies, of `target` or of all targets."""
    return open_store().list_studies(target, limit=MAX_COUNT)


def choose(label: str, names: Mapping[T, str], parameter: str, default: int = 0) -> T:
    """Let the visitor choose one of several things. The URL of the page keeps the choice, so that it can be shared.

    Args:
        label: label of the choice.
        names: the names of the things by their keys, at least one.
        parameter: parameter of the URL.
        default: position of the first choice, if the URL has none.
    """
    keys, key = list(names), f"choose-{parameter}"
    requested = st.query_params.get(parameter)
    first = next((place for place, one in enumerate(keys) if str(one) == requested), min(default, len(keys) - 1))
    chosen = st.selectbox(
        label, keys, index=first, format_func=names.__getitem__, key=key, on_change=_remember, args=(parameter, key)
    )
    assert chosen is not None
    st.query_params[parameter] = str(chosen)
    return chosen


def _remember(parameter: str, key: str) -> None:
    """Put a choice into the URL before the page is drawn, as its title names it."""
    st.query_params[parameter] = str(st.session_state[key])


def choose_study(label: str, found: list[StudySummary], parameter: str, default: int = 0) -> Study:
    """Let the visitor choose a study. The URL may name an older one than those found. See `choose`."""
    names = {summary.id: name_of(summary) for summary in found}
    requested = st.query_params.get(parameter, "")
    if requested.isdecimal() and int(requested) not in names:
        names = {int(requested): f"study {requested}"} | names
    return open_store().get_study(choose(label, names, parameter, default))


def name_of(summary: StudySummary) -> str:
    """Return a short name of a study, for a choice."""
    speed = f", {show.brief_speedup(summary.speedup)}" if summary.speedup else ""
    return f"{summary.id}: {summary.target}, {summary.mode} on {summary.device}{speed}"


def main() -> None:
    """Show the requested page, or the store's own error message."""
    pages = (
        st.Page(show_studies, title="Studies", url_path="studies", default=True),
        st.Page(show_study, title="Study", url_path="study"),
        st.Page(show_compare, title="Compare", url_path="compare"),
        st.Page(show_history, title="History", url_path="history"),
        st.Page(show_kernels, title="Kernels and stages", url_path="kernels"),
        st.Page(show_analyses, title="Analyses", url_path="analyses"),
        st.Page(show_benchmarks, title="Benchmarks", url_path="benchmarks"),
    )
    page = st.navigation(list(pages), position="top")
    subjects = [st.query_params[name] for name in SUBJECTS if name in st.query_params]
    st.set_page_config(page_title=f"Torchwise: {page.title} {' and '.join(subjects)}".strip(), layout="wide")
    try:
        page.run()
    except TorchwiseError as error:
        st.text(f"torchwise: {error}")


def show_studies() -> None:
    """Draw the list every few seconds, as a search elsewhere may start at any time."""
    places = st.columns(4, vertical_alignment="bottom")
    with places[0]:
        target = filter_by(partial(st.text_input, placeholder="all targets"), "Target", "target", str) or None
    with places[1]:
        since = filter_by(partial(st.date_input, format="YYYY-MM-DD"), "From (UTC)", "since", date.fromisoformat)
    with places[2]:
        until = filter_by(partial(st.date_input, format="YYYY-MM-DD"), "To (UTC)", "until", date.fromisoformat)
    with places[3]:
        order = choose("Order", {order: order.value for order in Order}, "order")
    st.fragment(run_every=LIST_EVERY_S)(_draw_list)(target, since, until, order)
    exported = to_csv(_find_studies(target, since, until, order))
    st.download_button("Export CSV", exported, "studies.csv", "text/csv")


def _find_studies(
    target: str | None, since: date | None, until: date | None, order: Order, limit: int | None = None
) -> list[StudySummary]:
    """Return the studies of a target, or of all targets whose names contain the text if it is no target."""
    listed = open_store().list_studies(target, limit=limit)
    if target and not listed:
        listed = [one for one in open_store().list_studies() if target.lower() in one.target.lower()]
    return select_studies(listed, since, until, order)


def filter_by(draw: Callable[..., Any], label: str, parameter: str, read: Callable[[str], T]) -> T | None:
    """Draw an input for a filter, which the URL keeps, and return its value, or None without one."""
    given = None
    with contextlib.suppress(ValueError):
        given = read(st.query_params[parameter]) if parameter in st.query_params else None
    found: T | None = draw(label, given, key=f"filter-{parameter}")
    if found:
        st.query_params[parameter] = str(found)
    else:
        st.query_params.pop(parameter, None)
    return found


def _draw_list(target: str | None, since: date | None, until: date | None, order: Order) -> None:
    is_plain = order is Order.NEWEST and not (since or until)  # in the store's own order, whose end nobody needs
    found = _find_studies(target, since, until, order, limit=MAX_COUNT + 1 if is_plain else None)
    if not found and (since or until):
        st.text("No study is of these days.")
        return
    st.html(render_studies(found, open_store().place, read_theme(), target=target, max_count=MAX_COUNT, order=order))


def show_study() -> None:
    """Draw the study in the URL, or the newest one. A running study is redrawn as it progresses."""
    found = list_studies()
    if not found:
        st.text("The store holds no study yet: torchwise tune TARGET creates one.")
        return
    study = choose_study("Study", found, "study")
    show_approvals(study)
    if study.state is StudyState.RUNNING:
        st.fragment(run_every=STUDY_EVERY_S)(_draw_live)(study.id)
    else:
        st.html(_render_page(study, read_theme()))


def _draw_live(number: int) -> None:
    study = open_store().get_study(number)
    if study.state is not StudyState.RUNNING:
        st.rerun()
    st.text(progress(study, time.time()))
    st.html(_render_page(study, read_theme()))


def _cache_key(study: Study) -> tuple[str, ...]:
    """Return a cache key that changes whenever the page would."""
    decided = study.decision.plan.id if study.decision else ""
    trials = (f"{trial.number} {trial.state} {trial.started_at}" for trial in study.trials)
    return (str(study.id), str(study.created_at), study.state, decided, *trials)


@st.cache_data(show_spinner=False, max_entries=32, hash_funcs={Study: _cache_key})
def _render_page(study: Study, theme: Theme) -> str:
    """Return the page of a study. It is cached, as drawing its plots takes a second."""
    return render_html_part(study, theme)


def show_approvals(study: Study) -> None:
    """Show the approvals for the study's target on its kind of machine, and a form, if changes are permitted."""
    workload, hardware = study.workload, study.environment.hardware
    found = open_store().approvals(workload.target, workload.mode, hardware)
    if found:
        in_force = apply_approvals(study.decision, open_store()).decision.reason if study.decision else ""
        st.html(render_approvals(found, in_force, read_theme()))
    if is_read_only():
        st.caption("Read-only: plans cannot be pinned, approved or rejected here.")
        return
    with st.expander("Pin, approve or reject a plan"), st.form("approval", border=False):
        rows_by_id = {row.plan.id: row for row in rows(study)}
        plan = st.selectbox("Plan", list(rows_by_id), format_func=lambda number: _row_label(rows_by_id[number]))
        standing = st.radio("Status", list(MEANINGS), captions=list(MEANINGS.values()), index=None)
        reason = st.text_input("Reason")
        by = st.text_input("Your name", _login())
        st.text(f"It applies to {workload.mode} on {hardware}.")  # text, as a caption would be read as Markdown
        if st.form_submit_button("Save") and plan is not None:
            _store_approval(study, rows_by_id[plan].plan, standing, by, reason)


def _row_label(row: Row) -> str:
    return f"{row.name} ({row.standing if row.trial else 'the original model'})"


def _store_approval(study: Study, plan: Plan, standing: str | None, by: str, reason: str) -> None:
    if standing is None:
        st.text("Choose a status first.")
        return
    storage, workload = open_store(), study.workload
    try:
        if standing == AUTOMATIC:
            storage.withdraw_approval(workload.target, workload.mode, study.environment.hardware, plan.id)
        else:
            storage.store_approval(make_approval(study, plan, Standing(standing), by=by, reason=reason))
    except TorchwiseError as error:
        st.text(f"torchwise: {error}")
        return
    st.rerun()


def _login() -> str:
    with contextlib.suppress(OSError, KeyError, ImportError):  # its errors differ by version and system
        return getpass.getuser()
    return ""


def show_compare() -> None:
    """Draw the two studies in the URL, or the newest study and the one before it of the same target."""
    found = list_studies()
    if len(found) < 2:
        st.text("The store holds fewer than two studies: torchwise tune TARGET creates one.")
        return
    earlier = next((i for i, summary in enumerate(found) if i and summary.target == found[0].target), 1)
    left, right = st.columns(2)
    with left:
        first = choose_study("First", found, "first", earlier)
    with right:
        second = choose_study("Second", found, "second")
    st.html(render_study_diff(first, second, read_theme()))


def show_history() -> None:
    """Draw the history of the target in the URL, or of the newest study's target."""
    requested = st.query_params.get("target")
    targets = dict.fromkeys(summary.target for summary in list_studies())
    if requested and requested not in targets:
        targets = {requested: None} | targets
    if not targets:
        st.text("The store holds no study yet: torchwise tune TARGET creates one.")
        return
    target = choose("Target", {target: target for target in targets}, "target")
    decided = [summary for summary in list_studies(target) if summary.state is StudyState.DECIDED]
    if not decided:
        st.text(f"No study of {target} is decided yet.")
        return
    if len(decided) > MAX_DRAWN:
        st.text(f"These are the newest {MAX_DRAWN} of {len(decided)} studies.")
    studies = [open_store().get_study(summary.id, target) for summary in decided[:MAX_DRAWN]]
    st.html(render_history(target, studies, read_theme()))


def show_kernels() -> None:
    """Draw the explanation in the URL, or the newest one."""
    _show_report(ReportKind.EXPLANATION, render_explanation_part)


def show_analyses() -> None:
    """Draw the analysis in the URL, or the newest one."""
    _show_report(ReportKind.ANALYSIS, render_analysis_part)


def show_benchmarks() -> None:
    """Draw the benchmark in the URL, or the newest one."""
    _show_report(ReportKind.BENCHMARK, render_bench_part)


def _show_report(kind: ReportKind, render: Callable[[Any, Theme], str]) -> None:
    found = open_store().reports(kind, limit=MAX_COUNT)
    if not found:
        st.text(f"The store holds no {kind} yet: torchwise {COMMANDS[kind]} TARGET creates one.")
        return
    names = {one.id: _name_report(kind, one) for one in found}
    requested = st.query_params.get(kind.value, "")
    if requested.isdecimal() and int(requested) not in names:  # older, or gone since it was renewed
        names = {int(requested): f"{kind} {requested}"} | names
    chosen = choose(kind.capitalize(), names, kind.value)
    st.html(_render_report(chosen, kind, render, read_theme()))


def _name_report(kind: ReportKind, one: ReportSummary) -> str:
    plan = one.plan or ("" if kind is ReportKind.BENCHMARK else "torch.compile")
    target = show.truncate(one.target, MAX_TARGET)
    subject = ", ".join(filter(None, (target, plan)))
    return ", ".join(filter(None, (f"{one.id}: {subject} on {one.device}", when(one.created_at))))


@st.cache_data(show_spinner=False, max_entries=32)
def _render_report(report_id: int, kind: ReportKind, _render: Callable[[Any, Theme], str], theme: Theme) -> str:
    """Return the page of a report, which never changes under its id. It is cached as in `_render_page`."""
    return _render(open_store().get_report(kind, report_id), theme)


if __name__ == "__main__":
    main()
