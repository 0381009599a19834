"""The page of a target's time: its six stages, its kernels, and the potential saving of each fix."""

from __future__ import annotations

import streamlit as st

from torchwise.dashboard import stored
from torchwise.report.explanation import render_explanation_part
from torchwise.report.facts import when


def show() -> None:
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
