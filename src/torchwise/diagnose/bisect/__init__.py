"""Find where a wrong answer, a NaN, a crash, a hang or a slow-down enters, down to a program that shows it."""

from torchwise.diagnose.bisect.probe_runner import BisectRequest
from torchwise.diagnose.bisect.run import bisect, run_bisection

__all__ = ["BisectRequest", "bisect", "run_bisection"]
