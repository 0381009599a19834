"""Benchmark Torchwise against its alternatives, each verified and timed in its own process."""

from torchwise.bench.request import BenchRequest
from torchwise.bench.run import run_benchmark
from torchwise.bench.suite import Suite, read_suite, resolve_targets

__all__ = ["BenchRequest", "Suite", "read_suite", "resolve_targets", "run_benchmark"]
