"""An analysis from its record alone: on a terminal, as a page, as plots, and while it runs. No torch."""

from torchwise.report.analysis.page import render_analysis_html, write_analysis_html
from torchwise.report.analysis.progress import AnalyzeProgress
from torchwise.report.analysis.terminal import render_analysis

__all__ = ["AnalyzeProgress", "render_analysis", "render_analysis_html", "write_analysis_html"]
