"""The page of one study: its decision, its candidates with plots, and the approvals of its plans."""

from __future__ import annotations

import time

import streamlit as st

from torchwise.dashboard import stored
from torchwise.dashboard.approvals import show_approvals
from torchwise.records import Study, StudyState
from torchwise.report.render.html import Theme
from torchwise.report.studies import progress
from torchwise.report.study import render_html_part

EVERY_S = 2


def show() -> None:
    """Draw the study in the URL, or the newest one. A running study is redrawn as it progresses."""
    found = stored.summaries()
    if not found:
        st.text("The store holds no study yet: torchwise tune TARGET creates one.")
        return
    study = stored.choose_study("Study", found, "study")
    show_approvals(study)
    if study.state is StudyState.RUNNING:
        st.fragment(run_every=EVERY_S)(_live)(study.id)
    else:
        st.html(_render_page(study, stored.theme()))


def _live(number: int) -> None:
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
