"""What a study looks like, from its records alone: on a terminal, as JSON, as one HTML page. Loads no torch."""

from torchwise.report.html import render_html, write_html
from torchwise.report.json_export import write_json
from torchwise.report.progress import Progress
from torchwise.report.terminal import render_decision, render_study

__all__ = ["Progress", "render_decision", "render_html", "render_study", "write_html", "write_json"]
