"""The form to pin, approve or reject a plan of a study, or to leave it to the evidence. `apply` respects it."""

from __future__ import annotations

import contextlib
import getpass

import streamlit as st

from torchwise.dashboard import stored
from torchwise.errors import TorchwiseError
from torchwise.plan import Plan
from torchwise.records import Standing, Study
from torchwise.report.approvals import render_approvals
from torchwise.report.trial_table import Row, rows
from torchwise.study.apply_approvals import apply_approvals
from torchwise.study.approvals import make_approval

AUTOMATIC = "automatic"
MEANINGS = {
    AUTOMATIC: "no ruling: the evidence decides",
    Standing.PINNED.value: "run this plan and no other",
    Standing.APPROVED.value: "permit it; what is not approved no longer runs",
    Standing.REJECTED.value: "never run it",
}


def rule(study: Study) -> None:
    """Show the approvals for the study's target on its kind of machine, and a form, if changes are permitted."""
    workload, hardware = study.workload, study.environment.hardware
    found = stored.storage().approvals(workload.target, workload.mode, hardware)
    if found:
        in_force = apply_approvals(study.decision, stored.storage()).decision.reason if study.decision else ""
        st.html(render_approvals(found, in_force, stored.theme()))
    if stored.is_read_only():
        st.caption("Read-only: nobody may rule on plans here.")
        return
    with st.expander("Pin, approve or reject a plan"), st.form("ruling", border=False):
        tried = {row.plan.id: row for row in rows(study)}
        plan = st.selectbox("Plan", list(tried), format_func=lambda number: _row_label(tried[number]))
        standing = st.radio("Standing", list(MEANINGS), captions=list(MEANINGS.values()), index=None)
        reason = st.text_input("Reason")
        by = st.text_input("Your name", _login())
        st.text(f"It holds for {workload.mode} on {hardware}.")  # text, as a caption would be read as Markdown
        if st.form_submit_button("Rule") and plan is not None:
            _store(study, tried[plan].plan, standing, by, reason)


def _row_label(row: Row) -> str:
    return f"{row.name} ({row.standing if row.trial else 'left alone'})"


def _store(study: Study, plan: Plan, standing: str | None, by: str, reason: str) -> None:
    if standing is None:
        st.text("Choose a standing first.")
        return
    storage, workload = stored.storage(), study.workload
    try:
        if standing == AUTOMATIC:
            storage.withdraw(workload.target, workload.mode, study.environment.hardware, plan.id)
        else:
            storage.rule(make_approval(study, plan, Standing(standing), by=by, reason=reason))
    except TorchwiseError as error:
        st.text(f"torchwise: {error}")
        return
    st.rerun()


def _login() -> str:
    with contextlib.suppress(OSError, KeyError, ImportError):  # its errors differ by version and system
        return getpass.getuser()
    return ""
