"""From evidence to the next plan to try, and to a decision: pure, with no torch, no clock, no input or output."""

from torchwise.decide.decision import decide
from torchwise.decide.history import History
from torchwise.decide.pairwise import front, next_duel
from torchwise.decide.repeats import next_cold, next_repeat, prune_below
from torchwise.decide.samplers import ListedSampler, Proposal, Sampler, StagedSampler

__all__ = [
    "History",
    "ListedSampler",
    "Proposal",
    "Sampler",
    "StagedSampler",
    "decide",
    "front",
    "next_cold",
    "next_duel",
    "next_repeat",
    "prune_below",
]
