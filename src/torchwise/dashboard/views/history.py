"""The page of a target's history over versions of torch, drivers and models."""

from __future__ import annotations

import streamlit as st

from torchwise.dashboard import stored
from torchwise.records import StudyState
from torchwise.report.history import render_history

MAX_COUNT = 40
"""Maximum number of studies to draw. Each is read with all its samples."""


def show() -> None:
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
    if len(decided) > MAX_COUNT:
        st.text(f"These are the newest {MAX_COUNT} of {len(decided)} studies.")
    studies = [stored.storage().get_study(summary.id, target) for summary in decided[:MAX_COUNT]]
    st.html(render_history(target, studies, stored.theme()))
