"""The script that Streamlit runs for each view: the pages and their URLs."""

from __future__ import annotations

import streamlit as st

from torchwise.dashboard.views import compare, history, kernels, studies, study
from torchwise.errors import TorchwiseError


def main() -> None:
    """Show the requested page, or the store's own error message."""
    st.set_page_config(page_title="Torchwise", layout="wide")
    page = st.navigation(
        [
            st.Page(studies.show, title="Studies", url_path="studies", default=True),
            st.Page(study.show, title="Study", url_path="study"),
            st.Page(compare.show, title="Compare", url_path="compare"),
            st.Page(history.show, title="History", url_path="history"),
            st.Page(kernels.show, title="Kernels and stages", url_path="kernels"),
        ],
        position="top",
    )
    try:
        page.run()
    except TorchwiseError as error:
        st.text(f"torchwise: {error}")


if __name__ == "__main__":
    main()
