"""Which plan to try next, one file for each algorithm: asking never executes anything."""

from torchwise.decide.samplers.base import Proposal, Sampler
from torchwise.decide.samplers.listed import ListedSampler
from torchwise.decide.samplers.staged import StagedSampler

__all__ = ["ListedSampler", "Proposal", "Sampler", "StagedSampler"]
