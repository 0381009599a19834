"""Which plan to try next, one file for each algorithm: asking never executes anything."""

from torchwise.study.samplers.base import ListedSampler, Proposal, Sampler
from torchwise.study.samplers.staged import StagedSampler

__all__ = ["ListedSampler", "Proposal", "Sampler", "StagedSampler"]
