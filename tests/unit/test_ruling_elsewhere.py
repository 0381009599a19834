"""Rulings are heeded wherever a decision becomes what runs: in buckets, parts, graphs of Dynamo, and training loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ruling_apply import rule

import torchwise
from live_decisions import decided
from torchwise import training
from torchwise.dynamo import decide
from torchwise.dynamo.options import Options
from torchwise.parts import CompileManager, search
from torchwise.plan import Plan
from torchwise.records import Decision, Interval, Standing
from torchwise.shapes import Padding, apply_buckets, prove

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
    decision = decided(net, PLAN, X)
    if is_rejected:
        rule(store, PLAN, Standing.REJECTED, decision)
    proof = prove(net, (X,), padding=Padding({"input": 0}), buckets=(4,))
    fast = apply_buckets(net, decision, proof, store=store)
    fast(X)
    assert fast.statistics.optimized == (0 if is_rejected else 1)


@pytest.mark.parametrize("is_rejected", [False, True])
def test_parts(store: str, is_rejected: bool) -> None:
    net = a_net()
    decision = decided(net, PLAN, X)
    decision = replace(decision, speedup=Interval(2.0, 2.0, 2.0))
    if is_rejected:
        rule(store, PLAN, Standing.REJECTED, decision)
    config = CompileManager("research", store=store, progress=False).config
    found: Any = search.judged(net, decision, config).optimized
    assert found.decision.plan.is_eager == is_rejected


@pytest.mark.parametrize("is_rejected", [False, True])
def test_graphs_of_dynamo(store: str, is_rejected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decision = decided(a_net(), PLAN, X)
    if is_rejected:
        rule(store, PLAN, Standing.REJECTED, decision)
    monkeypatch.setattr(decide, "_request", lambda *_: None)
    monkeypatch.setattr(decide, "_stored", lambda *_: decision)
    graph: Any = None
    assert decide.decide(graph, Options(store=store)).plan.is_eager == is_rejected


@pytest.mark.parametrize("is_rejected", [False, True])
def test_the_forward_of_a_training_loop(store: str, is_rejected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHWISE_STORE", store)
    net = a_net().train()
    decision = for_training(decided(net, PLAN, X))
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
    decision = for_training(decided(step, PLAN, X, X))
    if is_rejected:
        rule(store, PLAN, Standing.REJECTED, decision)
    assert training.apply(step, decision, store=store).decision.plan.is_eager == is_rejected


def for_training(decision: Decision) -> Decision:
    return replace(decision, workload=replace(decision.workload, mode="training"))
