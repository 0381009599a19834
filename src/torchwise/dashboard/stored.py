"""Access of the pages to the store, which is opened once."""

from __future__ import annotations

import sys

import streamlit as st

from torchwise.dashboard.serve import READ_ONLY
from torchwise.records import Study
from torchwise.report.html import Theme
from torchwise.store import Storage, StudySummary, default_url, open_storage

MAX_COUNT = 200
"""Maximum number of studies in a list. A filter by target finds older ones."""


def storage() -> Storage:
    """Return the store of this server."""
    return _storage(default_url())


@st.cache_resource(show_spinner=False)
def _storage(url: str) -> Storage:
    return open_storage(url)


def is_read_only() -> bool:
    """Return whether approvals cannot be changed here."""
    return READ_ONLY in sys.argv[1:]


def theme() -> Theme:
    """Return the visitor's chosen theme, or their system's."""
    return "dark" if st.context.theme.type == "dark" else "light"


def summaries(target: str | None = None) -> list[StudySummary]:
    """Return the newest studies, of `target` or of all targets."""
    return storage().list_studies(target, limit=MAX_COUNT)


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
    return storage().get_study(chosen)


def name_of(summary: StudySummary) -> str:
    """Return a short name of a study, for a choice."""
    found = summary.speedup
    speed = f", {f'{found.mid:.3g}×' if found.is_usable else 'inconclusive'}" if found else ""
    return f"{summary.id}: {summary.target}, {summary.mode} on {summary.device}{speed}"
