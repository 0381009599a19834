"""Which plan to try next, one file for each algorithm: asking never executes anything."""

from torchwise.decide.samplers.base import ListedSampler, Proposal, Sampler
from torchwise.decide.samplers.staged import StagedSampler

__all__ = ["ListedSampler", "Proposal", "Sampler", "StagedSampler"]
