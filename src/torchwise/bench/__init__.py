"""Contenders side by side: what a user would pick instead of Torchwise, each in its own process, proven and timed."""

from torchwise.bench.request import BenchRequest
from torchwise.bench.run import BenchListener, run_benchmark
from torchwise.bench.suite import Suite, read_suite, resolve_targets

__all__ = ["BenchListener", "BenchRequest", "Suite", "read_suite", "resolve_targets", "run_benchmark"]
