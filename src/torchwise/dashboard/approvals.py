"""The form to pin, approve or reject a plan of a study, or to withdraw that. `apply` respects it."""

from __future__ import annotations

import contextlib
import getpass

import streamlit as st

from torchwise.dashboard import stored
from torchwise.errors import TorchwiseError
from torchwise.plan import Plan
from torchwise.records import Standing, Study
from torchwise.records.candidates import Row, rows
from torchwise.report.studies import render_approvals
from torchwise.study.apply_approvals import apply_approvals, make_approval

AUTOMATIC = "automatic"
MEANINGS = {
    AUTOMATIC: "no approval: the measurements decide",
    Standing.PINNED.value: "run only this plan",
    Standing.APPROVED.value: "permit this plan: plans without approval no longer run",
    Standing.REJECTED.value: "never run this plan",
}


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
            _store(study, rows_by_id[plan].plan, standing, by, reason)


def _row_label(row: Row) -> str:
    return f"{row.name} ({row.standing if row.trial else 'the original model'})"


def _store(study: Study, plan: Plan, standing: str | None, by: str, reason: str) -> None:
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
