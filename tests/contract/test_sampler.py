"""Both samplers keep the contract, and the suite sees one that does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from broken import run_suite

from torchwise.plan import EAGER, Plan, PlanSpace
from torchwise.study.history import History
from torchwise.study.samplers import ListedSampler, Proposal, Sampler, StagedSampler
from torchwise.testing.records import INDUCTOR, complete_trial
from torchwise.testing.sampler import TRAITS, SamplerContract


class TestStagedSampler(SamplerContract):
    @pytest.fixture
    def make_sampler(self) -> Callable[[PlanSpace], Sampler]:
        return StagedSampler


class TestListedSampler(SamplerContract):
    @pytest.fixture
    def make_sampler(self) -> Callable[[PlanSpace], Sampler]:
        return lambda _space: ListedSampler([INDUCTOR, EAGER, Plan(precision="bf16"), INDUCTOR])


class RestlessSampler:
    """Proposes eager and a plan that is closed, again and again, and counts its own calls."""

    def __init__(self, _space: PlanSpace) -> None:
        self.asked = 0

    def ask(self, history: History) -> Proposal | None:
        self.asked += 1
        return Proposal((EAGER, Plan(precision="bf16"))[self.asked % 2], "")

    def list_worthwhile(self, history: History) -> list[Plan]:
        return self.sampler.list_worthwhile(history)

    def list_excluded(self, history: History) -> list[str]:
        return ["no reason"]


def test_a_sampler_that_breaks_the_contract_is_seen() -> None:
    space = PlanSpace("cpu", "inference", TRAITS)
    suite = SamplerContract()
    assert not any(run_suite(suite, make_sampler=RestlessSampler, space=space, end=complete_trial).values())
