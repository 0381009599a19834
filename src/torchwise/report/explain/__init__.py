"""An explanation on a terminal and as a page: the largest potential saving first, then stages and kernels."""

from torchwise.report.explain.page import render_explanation_html, write_explanation
from torchwise.report.explain.terminal import render_explanation

__all__ = ["render_explanation", "render_explanation_html", "write_explanation"]
