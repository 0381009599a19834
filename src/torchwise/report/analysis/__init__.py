"""Reports on an analysis, made from its record alone: terminal output, a page, plots and live progress. No torch."""

from torchwise.report.analysis.page import render_analysis_html, write_analysis_html
from torchwise.report.analysis.progress import AnalyzeProgress
from torchwise.report.analysis.terminal import render_analysis

__all__ = ["AnalyzeProgress", "render_analysis", "render_analysis_html", "write_analysis_html"]
