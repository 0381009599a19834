"""Approvals are heeded wherever a decision is run: in buckets, parts, graphs of Dynamo, and training loops."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_approval_apply import rule

import torchwise
from live_decisions import make_decision
from torchwise.plan import EAGER, Plan
from torchwise.records import Decision, Interval, Standing
from torchwise.runtime import training
from torchwise.runtime.bucketing import Padding, apply_buckets, bucketed, verify_padding
from torchwise.runtime.components import CompileManager, component
from torchwise.runtime.dynamo import decide
from torchwise.runtime.dynamo.decide import Options

PLAN = Plan(threads=torch.get_num_threads() + 1)
X = torch.randn(4, 3)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def a_net() -> torch.nn.Linear:
    return torch.nn.Linear(3, 3).eval()


@torch.no_grad()
@pytest.mark.parametrize("is_rejected", [False, True])
def test_buckets(store: str, is_rejected: bool) -> None:
    net = a_net()
    decision = make_decision(net, PLAN, X)
    if is_rejected:
        rule(store, PLAN, Standing.REJECTED, decision)
    proof = verify_padding(net, (X,), padding=Padding({"input": 0}), buckets=(4,))
    fast = apply_buckets(net, decision, proof, store=store)
    fast(X)
    assert fast.statistics.optimized == (0 if is_rejected else 1)


@dataclass(frozen=True)
class Found:
    decision: Decision


def tune_buckets(store: str) -> Any:
    net = a_net()
    tuned = Found(make_decision(net, PLAN, X))
    return bucketed(net, (X,), padding=Padding({"input": 0}), sizes=[4], tune=lambda *_, **__: tuned, store=store)


def test_buckets_ask_the_store_that_they_are_tuned_into(store: str) -> None:
    rule(store, PLAN, Standing.REJECTED, make_decision(a_net(), PLAN, X))
    assert tune_buckets(store).decision.plan == EAGER


def test_a_copy_of_buckets_carries_what_is_in_force(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = str(tmp_path / "default.db")
    monkeypatch.setenv("TORCHWISE_STORE", default)
    rule(default, PLAN, Standing.REJECTED, make_decision(a_net(), PLAN, X))
    fast = tune_buckets(store)
    for found in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert found.decision.plan == PLAN


@pytest.mark.parametrize("is_rejected", [False, True])
def test_parts(store: str, is_rejected: bool) -> None:
    net = a_net()
    decision = make_decision(net, PLAN, X)
    decision = replace(decision, speedup=Interval(2.0, 2.0, 2.0))
    if is_rejected:
        rule(store, PLAN, Standing.REJECTED, decision)
    config = CompileManager("research", store=store, progress=False).config
    found: Any = component.apply_if_faster(net, decision, config).optimized
    assert found.decision.plan.is_eager == is_rejected


@pytest.mark.parametrize("is_rejected", [False, True])
def test_graphs_of_dynamo(store: str, is_rejected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decision = make_decision(a_net(), PLAN, X)
    if is_rejected:
        rule(store, PLAN, Standing.REJECTED, decision)
    monkeypatch.setattr(decide, "_request", lambda *_: None)
    monkeypatch.setattr(decide, "_find_decision", lambda *_: decision)
    graph: Any = None
    assert decide.decide(graph, Options(store=store)).plan.is_eager == is_rejected


@pytest.mark.parametrize("is_rejected", [False, True])
def test_the_forward_of_a_training_loop(store: str, is_rejected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHWISE_STORE", store)
    net = a_net().train()
    decision = to_training(make_decision(net, PLAN, X))
    if is_rejected:
        rule(store, PLAN, Standing.REJECTED, decision)
    planned = training.PlannedForward(net, decision)
    for _ in range(3):
        planned.between_steps()
        net(X).sum().backward()
    assert bool(planned.statistics.optimized) != is_rejected
    planned.close()


@pytest.mark.parametrize("is_rejected", [False, True])
def test_a_training_step(store: str, is_rejected: bool) -> None:
    net = a_net().train()
    step = torchwise.TrainStep(net, torch.nn.functional.mse_loss, torch.optim.SGD(net.parameters(), 0.1))
    decision = to_training(make_decision(step, PLAN, X, X))
    if is_rejected:
        rule(store, PLAN, Standing.REJECTED, decision)
    assert training.apply(step, decision, store=store).decision.plan.is_eager == is_rejected


def to_training(decision: Decision) -> Decision:
    return replace(decision, workload=replace(decision.workload, mode="training"))
