"""Benchmark Torchwise against its alternatives, each verified and timed in its own process."""

from torchwise.bench.request import BenchRequest
from torchwise.bench.run import BenchListener, run_benchmark
from torchwise.bench.suite import Suite, read_suite, resolve_targets

__all__ = ["BenchListener", "BenchRequest", "Suite", "read_suite", "resolve_targets", "run_benchmark"]
