"""The page of all studies, newest first, with the progress of running ones."""

from __future__ import annotations

import streamlit as st

from torchwise.dashboard import stored
from torchwise.report.studies import render_studies

EVERY_S = 5


def show() -> None:
    """Draw the list every few seconds, as a search elsewhere may start at any time."""
    target = st.text_input("Target", placeholder="all targets", help="Show the studies of this target only.") or None
    st.fragment(run_every=EVERY_S)(_list)(target)


def _list(target: str | None) -> None:
    found = stored.summaries(target)
    st.html(render_studies(found, stored.storage().place, stored.theme(), target=target, max_count=stored.MAX_COUNT))
