"""The script that Streamlit runs for each view: the pages with their URLs, and the form for approvals."""

from __future__ import annotations

import contextlib
import getpass
import time

import streamlit as st

from torchwise.dashboard import stored
from torchwise.errors import TorchwiseError
from torchwise.plan import Plan
from torchwise.records import Standing, Study, StudyState
from torchwise.records.candidates import Row, rows
from torchwise.report.explanation import render_explanation_part
from torchwise.report.facts import when
from torchwise.report.html import Theme
from torchwise.report.studies import progress, render_approvals, render_history, render_studies, render_study_diff
from torchwise.report.study import render_html_part
from torchwise.study.apply_approvals import apply_approvals, make_approval

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
    found = stored.summaries(target)
    st.html(render_studies(found, stored.storage().place, stored.theme(), target=target, max_count=stored.MAX_COUNT))


def show_study() -> None:
    """Draw the study in the URL, or the newest one. A running study is redrawn as it progresses."""
    found = stored.summaries()
    if not found:
        st.text("The store holds no study yet: torchwise tune TARGET creates one.")
        return
    study = stored.choose_study("Study", found, "study")
    show_approvals(study)
    if study.state is StudyState.RUNNING:
        st.fragment(run_every=STUDY_EVERY_S)(_draw_live)(study.id)
    else:
        st.html(_render_page(study, stored.theme()))


def _draw_live(number: int) -> None:
    study = stored.storage().get_study(number)
    if study.state is not StudyState.RUNNING:
        st.rerun()
    st.text(progress(study, time.time()))
    st.html(_render_page(study, stored.theme()))


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
    found = stored.storage().approvals(workload.target, workload.mode, hardware)
    if found:
        in_force = apply_approvals(study.decision, stored.storage()).decision.reason if study.decision else ""
        st.html(render_approvals(found, in_force, stored.theme()))
    if stored.is_read_only():
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
    storage, workload = stored.storage(), study.workload
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
    found = stored.summaries()
    if len(found) < 2:
        st.text("The store holds fewer than two studies: torchwise tune TARGET creates one.")
        return
    earlier = next((i for i, summary in enumerate(found) if i and summary.target == found[0].target), 1)
    left, right = st.columns(2)
    with left:
        first = stored.choose_study("First", found, "first", earlier)
    with right:
        second = stored.choose_study("Second", found, "second")
    st.html(render_study_diff(first, second, stored.theme()))


def show_history() -> None:
    """Draw the history of the target in the URL, or of the newest study's target."""
    targets = list(dict.fromkeys(summary.target for summary in stored.summaries()))
    requested = st.query_params.get("target")
    if requested and requested not in targets:
        targets.insert(0, requested)
    if not targets:
        st.text("The store holds no study yet: torchwise tune TARGET creates one.")
        return
    target = st.selectbox("Target", targets, index=targets.index(requested) if requested else 0)
    assert target is not None
    st.query_params["target"] = target
    decided = [summary for summary in stored.summaries(target) if summary.state is StudyState.DECIDED]
    if not decided:
        st.text(f"No study of {target} is decided yet.")
        return
    if len(decided) > MAX_DRAWN:
        st.text(f"These are the newest {MAX_DRAWN} of {len(decided)} studies.")
    studies = [stored.storage().get_study(summary.id, target) for summary in decided[:MAX_DRAWN]]
    st.html(render_history(target, studies, stored.theme()))


def show_kernels() -> None:
    """Draw the explanation in the URL, or the newest one."""
    found = stored.storage().explanations(limit=stored.MAX_COUNT)
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
    st.html(render_explanation_part(stored.storage().get_explanation(chosen), stored.theme()))


if __name__ == "__main__":
    main()
