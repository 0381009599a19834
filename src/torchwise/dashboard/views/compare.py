"""The page of two studies side by side, from two machines, versions or requests."""

from __future__ import annotations

import streamlit as st

from torchwise.dashboard import stored
from torchwise.report.history import render_study_diff


def show() -> None:
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
