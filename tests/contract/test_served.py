"""Each wrapper that serves a plan keeps the contract, and the suite sees one that does not."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from broken import run_suite

from live_decisions import make_decision
from torchwise.plan import Plan
from torchwise.runtime import Dispatcher, OptimizedFunction, OptimizedModule, OptimizedStep, Statistics, unwrap
from torchwise.runtime.bucketing import BucketedFunction, BucketedModule, Padding, apply_buckets, verify_padding
from torchwise.runtime.served import Served, dispatcher_of, served_of
from torchwise.runtime.sizes_dispatch import SizesDispatcher
from torchwise.testing.models import MAX_ROWS, make_net, make_rows
from torchwise.testing.served import ROWS, CanRunContract, Serve, ServedContract, ServedModuleContract, compute_tanh
from torchwise.workload.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("way")  # calls are taken in Python, and by compiled checks
THREADS = Plan(threads=torch.get_num_threads() + 1)


def apply_decision(original: Any, plan: Plan) -> OptimizedModule | OptimizedFunction:
    kind = OptimizedModule if isinstance(original, torch.nn.Module) else OptimizedFunction
    return kind(original, make_decision(original, plan, make_rows(ROWS)))


def apply_one_bucket(original: Any, plan: Plan) -> BucketedModule | BucketedFunction:
    x = make_rows(ROWS)
    verified = verify_padding(original, (x,), padding=Padding({"x": 0}), buckets=(ROWS,))
    return apply_buckets(original, [make_decision(original, plan, x)], verified)


def apply_two_plans(original: Any, plan: Plan) -> OptimizedModule | OptimizedFunction:
    decisions = [make_decision(original, plan, make_rows(rows)) for rows in (ROWS, ROWS - 1)]
    kind = OptimizedModule if isinstance(original, torch.nn.Module) else OptimizedFunction
    made: OptimizedModule | OptimizedFunction = kind._wrap(SizesDispatcher(original, *decisions))
    return made


class TestSizesDispatcher(CanRunContract):
    @pytest.fixture
    def served(self) -> Served:
        return dispatcher_of(apply_two_plans(make_net(), THREADS))


class TestOtherSizes(CanRunContract):
    """The second plan answers in the place of the first one, and keeps the contract there."""

    @pytest.fixture
    def served(self) -> Served:
        return dispatcher_of(apply_two_plans(make_net(), THREADS))

    @pytest.fixture
    def verified(self) -> tuple[torch.Tensor]:
        return (make_rows(ROWS - 1),)


class TestDispatcher(CanRunContract):
    @pytest.fixture
    def served(self) -> Served:
        return dispatcher_of(apply_decision(make_net(), THREADS))


class TestBuckets(CanRunContract):
    @pytest.fixture
    def served(self) -> Served:
        return dispatcher_of(apply_one_bucket(make_net(), THREADS))


class TestStepDispatcher(CanRunContract):
    @pytest.fixture
    def verified(self) -> tuple[torch.Tensor, torch.Tensor]:
        return make_rows(ROWS), torch.zeros(ROWS, 4)

    @pytest.fixture
    def others(self) -> tuple[torch.Tensor, torch.Tensor]:
        return make_rows(MAX_ROWS), torch.zeros(MAX_ROWS, 4)

    @pytest.fixture
    def served(self, verified: tuple[torch.Tensor, torch.Tensor]) -> Served:
        model = torch.nn.Linear(4, 4)
        step = TrainStep(model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))
        return served_of(OptimizedStep(step, make_decision(step, THREADS, *verified)))


class Hasty(Dispatcher):
    """Says of every call that the plan may answer it."""

    def can_run(self, *_: Any) -> None:
        return None


class Counting(Dispatcher):
    """Counts a question as a call."""

    def can_run(self, args: Any, kwargs: Any) -> Any:
        self.statistics.optimized += 1
        return super().can_run(args, kwargs)


class Careless(Dispatcher):
    """Forgets that it was closed, and so does its copy."""

    def close(self, fallback: Any = None) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (Dispatcher, {"plan_answers", "reason_of", "closed_it", "recipe_makes"}),
        (Hasty, {"plan_answers"}),
        (Counting, set()),
        (Careless, {"plan_answers", "reason_of"}),
    ],
)
def test_what_breaks_the_contract_of_can_run_is_seen(kind: type[Dispatcher], kept: set[str]) -> None:
    net, passed = make_net(), set()
    given: dict[str, Any] = {"verified": (make_rows(ROWS),), "others": (make_rows(MAX_ROWS),)}
    for test in ("plan_answers", "reason_of", "closed_it", "recipe_makes"):  # each has one of its own
        served = kind(net, make_decision(net, THREADS, make_rows(ROWS)))
        suite = CanRunContract()
        (name,) = [name for name in dir(suite) if test in name]
        results = run_suite(SimpleNamespace(**{name: getattr(suite, name)}), served=served, **given)
        passed |= {test for result in results.values() if result}
    assert passed == kept


class TestOptimizedFunction(ServedContract):
    @pytest.fixture
    def serve(self) -> Serve:
        return apply_decision


class TestOptimizedModule(ServedModuleContract):
    @pytest.fixture
    def serve(self) -> Serve:
        return apply_decision


class TestFunctionWithTwoPlans(ServedContract):
    @pytest.fixture
    def serve(self) -> Serve:
        return apply_two_plans


class TestBucketedFunction(ServedContract):
    @pytest.fixture
    def serve(self) -> Serve:
        return apply_one_bucket


class TestBucketedModule(ServedModuleContract):
    @pytest.fixture
    def serve(self) -> Serve:
        return apply_one_bucket


class Forgetful(torch.nn.Module):
    """Answers always by its own copy of the model, as in evaluation mode, and counts nothing."""

    def __init__(self, original: torch.nn.Module, plan: Plan) -> None:
        super().__init__()
        self.model, self.plan, self.statistics = make_net().requires_grad_(False), plan, Statistics()

    def forward(self, x: torch.Tensor) -> Any:
        assert self.plan.backend == "eager", "a plan that fails fails the call"
        return self.model(x[:8])


def test_a_wrapper_that_breaks_the_contract_is_seen() -> None:
    original = make_net()
    fast = Forgetful(original, Plan(threads=1))
    given: dict[str, Any] = {"fast": fast, "original": original, "serve": Forgetful, "make_copy": lambda fast: fast}
    assert not any(run_suite(ServedModuleContract(), **given).values())


def test_a_function_that_wraps_a_wrapper_is_not_served() -> None:
    fast = apply_decision(compute_tanh, THREADS)

    @functools.wraps(fast)
    def round_answer(x: torch.Tensor) -> torch.Tensor:
        return fast(x).round()

    assert served_of(round_answer) is None
    assert unwrap(round_answer) is round_answer
    assert unwrap(apply_decision(round_answer, THREADS)) is round_answer
    for wrapper in (fast, apply_decision(make_net(), THREADS), apply_one_bucket(make_net(), THREADS)):
        assert served_of(wrapper) is not None
