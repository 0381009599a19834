"""The contract of a sampler (`torchwise.study.samplers.Sampler`), which chooses the plan to try next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from torchwise.plan import Numerics, PlanSpace, Trait
from torchwise.plan.space import choices_of
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Trial, TrialState
from torchwise.study.history import History
from torchwise.study.samplers import Proposal, Sampler
from torchwise.testing.records import complete_trial, fail_trial, make_study

TRAITS = frozenset(
    {Trait.MODULE, Trait.FLOATING, Trait.FLOAT32, Trait.GEMM, Trait.BUSY_PRODUCTS, Trait.CONV, Trait.REPEATED_BLOCKS}
)
MAX_PLANS = 500
"""Number of plans after which a search counts as endless."""

Ending = Callable[[Trial], Trial]
Make = Callable[[PlanSpace], Sampler]


def keep_running(trial: Trial) -> Trial:
    """Return the trial as it is, in the hands of another process."""
    return trial


class SamplerContract:
    """A sampler answers from the history alone: the same history gives the same answer, also from another sampler.

    It proposes only legal plans of the space, each with a reason. It never proposes eager, nor a plan that the history
    holds, whether it is finished or runs in another process. Sooner or later it answers None, and stays with that. The
    plans that it leaves out are texts, each as "name: reason".
    """

    @pytest.fixture
    def make_sampler(self) -> Make:
        """Override it: return a function that makes a new sampler for a space."""
        raise NotImplementedError("define a fixture `make_sampler` that returns a function from a space to a sampler")

    @pytest.fixture(params=["cpu", "cuda"])
    def space(self, request: pytest.FixtureRequest) -> PlanSpace:
        """Return the open choices. Override it for a sampler of another kind of workload."""
        return PlanSpace(request.param, "inference", TRAITS, Numerics.LOWER_PRECISION, "thorough")

    @pytest.fixture(params=[complete_trial, fail_trial, keep_running])
    def end(self, request: pytest.FixtureRequest) -> Ending:
        """Return the function that ends each trial, or leaves it to another process."""
        ending: Ending = request.param
        return ending

    def test_the_same_history_gives_the_same_answer(self, make_sampler: Make, space: PlanSpace, end: Ending) -> None:
        sampler = make_sampler(space)
        for history, proposal in iter_search(sampler, space, end):
            for other in (sampler, make_sampler(space)):
                assert other.ask(history) == proposal
                assert other.list_excluded(history) == sampler.list_excluded(history)

    def test_no_plan_comes_twice(self, make_sampler: Make, space: PlanSpace, end: Ending) -> None:
        for history, proposal in iter_search(make_sampler(space), space, end):
            assert proposal is None or history.find_trial(proposal.plan) is None

    def test_each_plan_is_open_and_has_a_reason(self, make_sampler: Make, space: PlanSpace, end: Ending) -> None:
        for history, proposal in iter_search(make_sampler(space), space, end):
            if proposal is not None:
                now = replace(space, traits=space.traits | history.traits)
                assert [now.excludes(choice) for choice in choices_of(proposal.plan) if now.excludes(choice)] == []
                assert not proposal.plan.is_eager
                assert proposal.reason
                assert proposal.limit_s > 0

    def test_it_ends_and_stays_with_that(self, make_sampler: Make, space: PlanSpace, end: Ending) -> None:
        sampler = make_sampler(space)
        last, proposal = list(iter_search(sampler, space, end))[-1]
        assert proposal is None, f"it has proposed {MAX_PLANS} plans, and goes on"
        assert sampler.ask(last) is None

    def test_it_ends_when_nothing_is_worthwhile(self, make_sampler: Make, space: PlanSpace, end: Ending) -> None:
        sampler = make_sampler(space)
        for history, proposal in iter_search(sampler, space, end):
            worthwhile = sampler.list_worthwhile(history)
            assert [plan for plan in worthwhile if history.find_trial(plan) is not None] == []
            assert proposal is not None or worthwhile == []

    def test_what_it_leaves_out_are_texts(self, make_sampler: Make, space: PlanSpace, end: Ending) -> None:
        sampler = make_sampler(space)
        for history, _ in iter_search(sampler, space, end):
            for line in sampler.list_excluded(history):
                name, _, reason = line.partition(": ")
                assert name
                assert reason


def iter_search(sampler: Sampler, space: PlanSpace, end: Ending) -> Iterator[tuple[History, Proposal | None]]:
    """Yield each history of a search with the sampler's answer, until it is None, or there are `MAX_PLANS`."""
    workload: dict[str, Any] = {"device": space.device, "mode": space.mode, "calls": 10**8}
    inspection = replace(make_study().inspection, traits=space.traits, shares={"gemm": 0.5, "conv": 0.3, "launch": 0.5})
    history = History(WorkloadSpec("zoo:tutorial.fusion_demo", **workload), inspection, ())
    for number in range(MAX_PLANS):
        proposal = sampler.ask(history)
        yield history, proposal
        if proposal is None:
            return
        trial = end(Trial(number, proposal.plan, TrialState.RUNNING))
        history = replace(history, trials=(*history.trials, trial))
