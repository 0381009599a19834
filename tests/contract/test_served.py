"""Each wrapper that serves a plan keeps the contract, and the suite sees one that does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from broken import run_suite

from live_decisions import make_decision
from torchwise.plan import Plan
from torchwise.runtime import OptimizedFunction, OptimizedModule, Statistics
from torchwise.runtime.bucketing import BucketedFunction, BucketedModule, Padding, apply_buckets, verify_padding
from torchwise.testing.models import make_net, make_rows
from torchwise.testing.served import ROWS, Serve, ServedContract, ServedModuleContract


def apply_decision(original: Any, plan: Plan) -> OptimizedModule | OptimizedFunction:
    kind = OptimizedModule if isinstance(original, torch.nn.Module) else OptimizedFunction
    return kind(original, make_decision(original, plan, make_rows(ROWS)))


def apply_one_bucket(original: Any, plan: Plan) -> BucketedModule | BucketedFunction:
    x = make_rows(ROWS)
    verified = verify_padding(original, (x,), padding=Padding({"x": 0}), buckets=(ROWS,))
    return apply_buckets(original, [make_decision(original, plan, x)], verified)


class TestOptimizedFunction(ServedContract):
    @pytest.fixture
    def serve(self) -> Serve:
        return apply_decision


class TestOptimizedModule(ServedModuleContract):
    @pytest.fixture
    def serve(self) -> Serve:
        return apply_decision


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
