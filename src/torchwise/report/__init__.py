"""Reports on studies and benchmarks: terminal output, files and plots. They need only the records, and no torch."""

from torchwise.report.bench import (
    BenchProgress,
    export,
    read_benchmark,
    render_benchmark,
    render_comparison,
    write_plots,
)
from torchwise.report.comparison import compare
from torchwise.report.html import render_html, write_html
from torchwise.report.json_export import write_json
from torchwise.report.progress import Progress
from torchwise.report.terminal import render_decision, render_study

__all__ = [
    "BenchProgress",
    "Progress",
    "compare",
    "export",
    "read_benchmark",
    "render_benchmark",
    "render_comparison",
    "render_decision",
    "render_html",
    "render_study",
    "write_html",
    "write_json",
    "write_plots",
]
