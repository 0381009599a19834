"""Reports on studies and benchmarks: terminal output, files and plots. They need only the records, and no torch."""

from torchwise.report.bench import render_bench_html, render_benchmark, render_comparison
from torchwise.report.bench_files import export, read_benchmark
from torchwise.report.plots.bench import write_plots
from torchwise.report.progress import BenchProgress, Progress
from torchwise.report.steps import render_steps
from torchwise.report.study import render_decision, render_html, render_study

__all__ = [
    "BenchProgress",
    "Progress",
    "export",
    "read_benchmark",
    "render_bench_html",
    "render_benchmark",
    "render_comparison",
    "render_decision",
    "render_html",
    "render_steps",
    "render_study",
    "write_plots",
]
