"""Reports on an analysis: terminal output, a page, plots and live progress. They need only the record, and no torch."""

from torchwise.report.analysis.page import render_analysis_html, write_analysis_html
from torchwise.report.analysis.progress import AnalyzeProgress
from torchwise.report.analysis.terminal import render_analysis

__all__ = ["AnalyzeProgress", "render_analysis", "render_analysis_html", "write_analysis_html"]
