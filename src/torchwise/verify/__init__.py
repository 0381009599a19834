"""Whether a candidate gives the right answer: against a float64 reference, with eager's own error as the yardstick."""

from torchwise.verify.stochastic import is_stochastic
from torchwise.verify.verify import Subject, verify

__all__ = ["Subject", "is_stochastic", "verify"]
