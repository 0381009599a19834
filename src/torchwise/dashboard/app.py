"""The script that Streamlit runs for each view: the pages with their URLs, and the form for approvals."""

from __future__ import annotations

import contextlib
import getpass
import sys
import time

import streamlit as st

from torchwise.dashboard.serve import READ_ONLY
from torchwise.errors import TorchwiseError
from torchwise.plan import Plan
from torchwise.records import Standing, Study, StudyState
from torchwise.records.candidates import Row, rows
from torchwise.report.explanation import render_explanation_part
from torchwise.report.facts import when
from torchwise.report.html import Theme
from torchwise.report.studies import progress, render_approvals, render_history, render_studies, render_study_diff
from torchwise.report.study import render_html_part
from torchwise.store import Storage, StudySummary, default_url, open_storage
from torchwise.study.apply_approvals import apply_approvals, make_approval

MAX_COUNT = 200
"""Maximum number of studies in a list. A filter by target finds older ones."""
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


def choose_study(label: str, found: list[StudySummary], parameter: str, default: int = 0) -> Study:
    """Let the visitor choose a study. The URL of the page keeps the choice, so that it can be shared.

    Args:
        label: label of the choice.
        found: the studies to choose from, at least one.
        parameter: parameter of the URL, which may name another study.
        default: position of the first choice.
    """
    names = {summary.id: name_of(summary) for summary in found}
    requested = st.query_params.get(parameter, "")
    if requested.isdecimal() and int(requested) not in names:
        names = {int(requested): f"study {requested}"} | names
    ids = list(names)
    first = ids.index(int(requested)) if requested.isdecimal() else min(default, len(ids) - 1)
    chosen = st.selectbox(label, ids, index=first, format_func=names.__getitem__, key=f"choose-{parameter}")
    assert isinstance(chosen, int)
    st.query_params[parameter] = str(chosen)
    return open_store().get_study(chosen)


def name_of(summary: StudySummary) -> str:
    """Return a short name of a study, for a choice."""
    found = summary.speedup
    speed = f", {f'{found.mid:.3g}×' if found.is_usable else 'inconclusive'}" if found else ""
    return f"{summary.id}: {summary.target}, {summary.mode} on {summary.device}{speed}"


def main() -> None:
    """Show the requested page, or the store's own error message."""
    st.set_page_config(page_title="Torchwise", layout="wide")
    page = st.navigation(
        [
            st.Page(show_studies, title="Studies", url_path="studies", default=True),
            st.Page(show_study, title="Study", url_path="study"),
            st.Page(show_compare, title="Compare", url_path="compare"),
            st.Page(show_history, title="History", url_path="history"),
            st.Page(show_kernels, title="Kernels and stages", url_path="kernels"),
        ],
        position="top",
    )
    try:
        page.run()
    except TorchwiseError as error:
        st.text(f"torchwise: {error}")


def show_studies() -> None:
    """Draw the list every few seconds, as a search elsewhere may start at any time."""
    target = st.text_input("Target", placeholder="all targets", help="Show the studies of this target only.") or None
    st.fragment(run_every=LIST_EVERY_S)(_draw_list)(target)


def _draw_list(target: str | None) -> None:
    found = list_studies(target)
    st.html(render_studies(found, open_store().place, read_theme(), target=target, max_count=MAX_COUNT))


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
    targets = list(dict.fromkeys(summary.target for summary in list_studies()))
    requested = st.query_params.get("target")
    if requested and requested not in targets:
        targets.insert(0, requested)
    if not targets:
        st.text("The store holds no study yet: torchwise tune TARGET creates one.")
        return
    target = st.selectbox("Target", targets, index=targets.index(requested) if requested else 0)
    assert target is not None
    st.query_params["target"] = target
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
    found = open_store().explanations(limit=MAX_COUNT)
    if not found:
        st.text("The store holds no explanation yet: torchwise explain TARGET creates one.")
        return
    names = {
        one.id: f"{one.target}, {one.plan or 'torch.compile'} on {one.device}, {when(one.created_at)}" for one in found
    }
    requested = st.query_params.get("explanation", "")
    first = list(names).index(int(requested)) if requested.isdecimal() and int(requested) in names else 0
    chosen = st.selectbox("Explanation", list(names), index=first, format_func=names.__getitem__)
    assert isinstance(chosen, int)
    st.query_params["explanation"] = str(chosen)
    st.html(render_explanation_part(open_store().get_explanation(chosen), read_theme()))


if __name__ == "__main__":
    main()
