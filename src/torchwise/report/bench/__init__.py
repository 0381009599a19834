"""Reports on a benchmark: table, summary, plots, files, and the comparison of two benchmarks."""

from torchwise.report.bench.comparison import render_comparison
from torchwise.report.bench.export import check_exportable, export, read_benchmark
from torchwise.report.bench.page import render_bench_html, write_bench_html
from torchwise.report.bench.plots import write_plots
from torchwise.report.bench.progress import BenchProgress
from torchwise.report.bench.terminal import render_benchmark

__all__ = [
    "BenchProgress",
    "check_exportable",
    "export",
    "read_benchmark",
    "render_bench_html",
    "render_benchmark",
    "render_comparison",
    "write_bench_html",
    "write_plots",
]
