"""Training steps whose numbers change: they become inputs of compiled code. All else is bounded, and said."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from step_samples import Net, a_step, batch, batches, collect_step_state

import torchwise
from live_decisions import make_decision
from torchwise._torch.dynamo import count_compiled_graphs
from torchwise.alerts import heard
from torchwise.compile.backends import inductor
from torchwise.plan import Plan
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.served import NOT_VERIFIED
from torchwise.runtime.step import OptimizedStep

MODEL, LOSS = Plan(backend="inductor"), Plan(backend="inductor", scope="loss")
COMPILED = Plan(backend="inductor", optimizer="compiled")
STYLE = "plain"


@pytest.fixture(autouse=True)
def _captured_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have Inductor compile nothing, and graphs run as Dynamo captured them."""
    torch._dynamo.reset()
    monkeypatch.setattr(inductor, "_backend", lambda _plan, _options: lambda graph, _inputs: graph.forward)
    yield
    torch._dynamo.reset()


class Styled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.strength, self.epoch = 1.0, 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = super().forward(x) * self.strength / self.epoch
        return scaled + len(STYLE)


def make_steps(plan: Plan) -> tuple[OptimizedStep, Any]:
    """Return a step by a plan, and the same as written."""
    step = a_step(Styled())
    fast = torchwise.apply(step, make_decision(step, plan, *batch()))
    assert isinstance(fast, OptimizedStep)
    return fast, a_step(Styled())


def agree(fast: Any, written: Any) -> None:
    for ours, theirs in zip(collect_step_state(fast), collect_step_state(written), strict=True):
        if isinstance(ours, torch.Tensor):
            torch.testing.assert_close(ours, theirs)
        else:
            assert ours == theirs


def group(step: Any) -> dict[str, Any]:
    found: dict[str, Any] = step.optimizer.param_groups[0]
    return found


NUMBERS: dict[str, tuple[Plan, Callable[[Any, int], object]]] = {
    "betas": (COMPILED, lambda step, i: group(step).update(betas=(0.9 - i / 100, 0.999 - i / 1000))),
    "weight decay": (COMPILED, lambda step, i: group(step).update(weight_decay=0.1 + i / 100)),
    "learning rate": (COMPILED, lambda step, i: group(step).update(lr=0.01 / (i + 1))),
    "float on the model": (MODEL, lambda step, i: setattr(step.model, "strength", 1.5 + i)),
    "integer on the model": (
        Plan(backend="inductor", scope="loss"),
        lambda step, i: setattr(step.model, "epoch", 2 + i),
    ),
}


@pytest.mark.parametrize(("plan", "change"), NUMBERS.values(), ids=list(NUMBERS))
def test_a_number_is_compiled_for_once_more_and_then_is_an_input(
    plan: Plan, change: Callable[[Any, int], object]
) -> None:
    fast, written = make_steps(plan)
    for i, given in enumerate(batches(14)):
        if i > 1:
            change(fast, i)
            change(written, i)
        fast(*given)
        written(*given)
        if i == 3:
            before = count_compiled_graphs()
    agree(fast, written)
    assert count_compiled_graphs() == before
    assert (fast.statistics.optimized, fast.statistics.recompiles) == (14, 1)


def test_what_cannot_be_an_input_ends_the_plan_after_a_whole_step_and_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fast, written = make_steps(MODEL)
    with heard() as alerts:
        for i, given in enumerate(batches(14)):
            monkeypatch.setitem(globals(), "STYLE", "x" * i)
            fast(*given)
            written(*given)
    agree(fast, written)
    assert (fast.statistics.optimized, fast.statistics.recompiles) == (10, 9)
    [(reason, times)] = fast.statistics.original.items()
    assert reason == FallbackReason.RECOMPILE_LIMIT
    sentence = fast.statistics.sentences[reason]
    assert sentence.startswith("the global variable `STYLE` is another string on every call")
    assert times == 4
    assert [(alert.kind, alert.facts["sentence"]) for alert in alerts] == [("recompile_limit", sentence)]
    assert caplog.text.count("training goes on as written") == 1


def test_settings_of_an_optimizer_that_take_turns_are_compiled_for_once_each() -> None:
    fast, written = make_steps(COMPILED)
    for i, given in enumerate(batches(12)):
        for step in (fast, written):
            group(step)["maximize"] = i % 2 == 1
        fast(*given)
        written(*given)
    agree(fast, written)
    assert (fast.statistics.optimized, fast.statistics.recompiles) == (12, 1)


def test_a_setting_of_an_optimizer_that_cannot_be_an_input_ends_the_plan_and_is_named() -> None:
    fast, written = make_steps(COMPILED)
    for i, given in enumerate(batches(12)):
        for step in (fast, written):
            group(step)["note"] = "x" * i
        fast(*given)
        written(*given)
    agree(fast, written)
    assert (fast.statistics.optimized, fast.statistics.recompiles) == (10, 9)
    [reason] = fast.statistics.sentences.values()
    assert reason.startswith("`param_groups[0]['note']` on the AdamW is another string on every call")


def test_batches_that_were_not_proven_are_said_once_and_alerted(caplog: pytest.LogCaptureFixture) -> None:
    fast, _ = make_steps(MODEL)
    with heard() as alerts, caplog.at_level(logging.WARNING, "torchwise"):
        for given in batches(30, rows=6):
            fast(*given)
    assert caplog.text.count(f"a training step is taken as written, because {NOT_VERIFIED}") == 1
    assert caplog.text.count("the plan was verified on ") == 1
    assert "and not on [0][0] float32[6, 4] (4, 1); [0][1] int64[6] (1,)" in caplog.text
    assert [alert.kind for alert in alerts] == ["fallback_rate"]
    assert alerts[0].facts["reason"] == FallbackReason.INPUTS_NOT_VERIFIED
    assert alerts[0].facts["sentence"] == str(NOT_VERIFIED)
    assert dict(fast.statistics.original) == {FallbackReason.INPUTS_NOT_VERIFIED: 30}
