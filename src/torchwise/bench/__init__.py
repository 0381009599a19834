"""Benchmark Torchwise against its alternatives, each verified and timed in its own process."""

from torchwise.bench.request import BenchRequest, Suite, read_suite, resolve_targets
from torchwise.bench.run import run_benchmark

__all__ = ["BenchRequest", "Suite", "read_suite", "resolve_targets", "run_benchmark"]
