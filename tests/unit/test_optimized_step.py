"""A training step in production: the plan answers, and on any failure the step is taken, once, as written."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from step_samples import Blocks, a_step, batch, batches, collect_step_state, same

import torchwise
from live_decisions import make_decision
from torchwise.compile import train_step as realize_step
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.runtime import step as step_module
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.served import served_of
from torchwise.runtime.statistics import Statistics
from torchwise.runtime.step import OptimizedStep
from torchwise.runtime.training.step import RankedStep
from torchwise.workload.train_step import TrainStep

FUSED = Plan(optimizer="fused")
FAILED = FallbackReason.PLAN_FAILED


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def exponential(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def make(**how: Any) -> TrainStep:
    return a_step(**{"model": Blocks(dropout=0.2), "scheduler": exponential, "clip_norm": 1.0, **how})


def apply_plan(step: TrainStep, plan: Plan = FUSED) -> OptimizedStep:
    fast = torchwise.apply(step, make_decision(step, plan, *batch()))
    assert isinstance(fast, OptimizedStep)
    return fast


def run(step: Any, count: int = 4, rows: int = 8) -> list[Any]:
    """Take some steps. Return their losses, all state, and the generator's."""
    torch.manual_seed(1)
    losses = [step(*given) for given in batches(count, rows)]
    return [*losses, *collect_step_state(step), torch.get_rng_state()]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Have a plan raise at one of its steps, when its work is half done."""

    def fail_at(number: int, error: Exception | None = None) -> list[int]:
        calls: list[int] = []
        update = realize_step.CompiledStep.compute

        def compute(self: Any, *given: Any) -> torch.Tensor:
            calls.append(1)
            if len(calls) != number:
                return update(self, *given)
            loss = self._step.loss_of(*given)  # random numbers are drawn,
            loss.backward()
            self._step.optimizer.step()  # weights and the optimizer's state change, and it breaks
            raise error or RuntimeError("a kernel fails")

        monkeypatch.setattr(realize_step.CompiledStep, "compute", compute)
        return calls

    return fail_at


# ---- the plan answers


def test_a_plan_takes_the_steps() -> None:
    step, written = make(), make()
    fast = apply_plan(step)
    torch.testing.assert_close(run(fast)[:4], run(written)[:4])
    assert step.optimizer.param_groups[0]["fused"] is True
    assert fast.statistics.optimized == 4
    assert not fast.statistics.original
    assert step.schedulers[0].last_epoch == 4


def test_a_plan_that_was_proven_on_another_device_is_not_taken() -> None:
    step, written = make(), make()
    found = make_decision(step, FUSED, *batch())
    fast = torchwise.apply(step, replace(found, workload=replace(found.workload, device="cuda")))
    assert same(run(fast), run(written))
    assert fast.statistics.original == {FallbackReason.INPUTS_NOT_VERIFIED: 4}


def test_another_batch_goes_as_written_and_is_counted() -> None:
    fast = apply_plan(make())
    fast(*batch(8))
    for given in (batch(6), batch(6), (batch(8)[0].double().float(), batch(8)[1].int().long())):
        fast(*given)
    assert fast.statistics.optimized == 2
    assert dict(fast.statistics.original) == {FallbackReason.INPUTS_NOT_VERIFIED: 2}
    ((difference, times),) = fast.statistics.unverified.items()
    assert "was float32[8" in difference
    assert times == 2


def test_attributes_are_the_steps_own() -> None:
    step = make()
    fast = apply_plan(step)
    assert fast.model is step.model
    assert fast.clip_norm == 1.0
    assert torchwise.unwrap(fast) is step
    assert repr(fast) == "<OptimizedStep of Blocks, plan: eager + fused optimizer>"
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        _ = fast.unknown


def test_closing_gives_the_optimizer_its_form_back_and_the_next_step_makes_the_plan_anew() -> None:
    step = make()
    fast = apply_plan(step)
    fast(*batch())
    fast.close()
    assert step.optimizer.param_groups[0]["fused"] is None
    fast(*batch())
    assert step.optimizer.param_groups[0]["fused"] is True
    assert fast.statistics.optimized == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["copy", "pickle"])
def test_a_copy_goes_on_as_the_step_does(copied: Callable[[Any], Any]) -> None:
    fast = apply_plan(make())
    run(fast, 2)
    other = copied(fast)
    assert isinstance(other, OptimizedStep)
    assert other.original is not fast.original
    assert other.decision == fast.decision
    assert same(run(other, 3), run(fast, 3))
    assert other.statistics.optimized == 3


def test_a_checkpoint_knows_nothing_of_the_plan_and_loads_in_both_directions() -> None:
    fast, written = apply_plan(make()), make()
    run(fast, 2)
    kept = copy.deepcopy(fast.state_dict())
    assert kept["optimizer"]["param_groups"][0]["fused"] is None
    written.load_state_dict(copy.deepcopy(kept))
    other = apply_plan(make())
    other.load_state_dict(copy.deepcopy(kept))
    assert same(collect_step_state(written), collect_step_state(other))
    assert same(run(other, 3), run(fast, 3))


# ---- where it fails


@pytest.mark.parametrize("before", [0, 1])
def test_a_plan_that_fails_early_leaves_no_trace(
    failing: Callable[..., list[int]], before: int, caplog: pytest.LogCaptureFixture
) -> None:
    calls = failing(before + 1)
    step, written = make(), make()
    fast = apply_plan(step)
    for given in batches(before):
        fast(*given)
    written.load_state_dict(copy.deepcopy(fast.state_dict()))
    assert same(run(fast), run(written))
    assert len(calls) == before + 1
    assert step.optimizer.param_groups[0]["fused"] is None
    assert type(step.optimizer.param_groups[0]["lr"]) is float
    assert fast.statistics.original[FAILED] == 4
    assert (fast.statistics.failures["RuntimeError"], fast.statistics.opened) == (1, 1)
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING and r.name == "torchwise"]) == 1
    assert "training goes on as written, because the plan failed (RuntimeError): a kernel fails" in caplog.text


def test_a_plan_that_fails_later_goes_on_as_written(failing: Callable[..., list[int]]) -> None:
    failing(4)
    step = make()
    fast = apply_plan(step)
    run(fast, 6)
    assert fast.statistics.optimized == 3
    assert fast.statistics.original[FAILED] == 3
    assert step.schedulers[0].last_epoch == 6, "each call is one step"
    assert step.optimizer.param_groups[0]["fused"] is None


def test_no_memory_for_a_copy_of_the_state_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    step, written = make(), make()
    monkeypatch.setattr(TrainStep, "snapshot", full)
    fast = apply_plan(step)
    torch.testing.assert_close(run(fast)[:4], run(written)[:4])
    assert fast.statistics.optimized == 4


def test_the_numbers_are_put_back_even_without_memory_for_the_state(
    monkeypatch: pytest.MonkeyPatch, failing: Callable[..., list[int]]
) -> None:
    def full(_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(TrainStep, "snapshot", full)
    failing(1)
    fast, written = apply_plan(make()), make()
    torch.manual_seed(1)
    fast(*batch(seed=0))
    numbers = torch.get_rng_state()
    torch.manual_seed(1)
    written(*batch(seed=0))
    assert torch.equal(torch.get_rng_state(), numbers)


def test_what_the_plan_held_is_let_go_before_the_step_is_taken_as_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import weakref

    seen: list[Any] = []
    note, noted = seen.append, seen.__getitem__  # or the list would be state of the loss, which is put back

    def compute(_: Any, *_given: Any) -> torch.Tensor:
        big = torch.ones(3)
        note(weakref.ref(big))
        raise torch.OutOfMemoryError("no memory")

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        note(noted(0)() is None)
        return torch.nn.functional.cross_entropy(outputs, y)

    monkeypatch.setattr(realize_step.CompiledStep, "compute", compute)
    fast = apply_plan(make(loss=loss))
    fast(*batch())
    assert seen[1] is True


def test_a_bad_batch_is_the_callers_own_error_and_ends_no_plan() -> None:
    step, written = make(), make()
    fast = apply_plan(step)
    x, y = batch()
    for side in (fast, written):
        torch.manual_seed(2)
        side(*batch(seed=0))
        with pytest.raises(IndexError, match="out of bounds"):
            side(x, y + 9)
        torch.manual_seed(3)
        side(*batch(seed=1))
    assert fast.statistics.optimized == 2
    assert not fast.statistics.failures
    assert step.optimizer.param_groups[0]["fused"] is True
    torch.testing.assert_close([*step.model.parameters()], [*written.model.parameters()])


def test_what_a_scheduler_raises_is_the_callers_and_the_step_is_taken_once() -> None:
    def two_steps(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3, cycle_momentum=False)

    step, written = make(scheduler=two_steps), make(scheduler=two_steps)
    fast = apply_plan(step)
    for side in (fast, written):
        torch.manual_seed(1)
        for given in batches(3):
            side(*given)
        with pytest.raises(ValueError, match="total steps"):
            side(*batch(seed=3))
    torch.testing.assert_close([*step.model.parameters()], [*written.model.parameters()])
    assert not fast.statistics.failures


class Doubling(torch.nn.Linear):
    """Writes to its input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.mul_(2))


def test_a_plan_that_fails_early_leaves_the_batch_as_it_was(failing: Callable[..., list[int]]) -> None:
    failing(1)
    fast, written = (a_step(Doubling(4, 3)) for _ in range(2))
    written.load_state_dict(copy.deepcopy(fast.state_dict()))
    assert same(run(apply_plan(fast)), run(written))


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_plan_that_fails_in_an_update_under_a_scaler_goes_on_as_written(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def full(*_: Any) -> None:
        calls.append(1)
        if len(calls) == at:
            raise torch.OutOfMemoryError("no memory")

    step, written = (a_step(scaler=torch.amp.GradScaler("cpu", init_scale=4.0)) for _ in range(2))
    fast = apply_plan(step)
    step.optimizer.register_step_pre_hook(full)
    torch.testing.assert_close(run(fast, 6)[:6], run(written, 6)[:6])
    assert len(calls) == 7
    assert dict(fast.statistics.failures) == {"OutOfMemoryError": 1}
    assert fast.statistics.optimized == at - 1
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING and r.name == "torchwise"]) == 1
    assert not {"grad_scale", "found_inf"} & set(vars(step.optimizer))


def test_kinds_of_batch_that_are_not_proven_are_not_remembered() -> None:
    def weight_loss(outputs: torch.Tensor, y: torch.Tensor, weight: float) -> torch.Tensor:
        return weight * torch.nn.functional.cross_entropy(outputs, y)

    step = a_step(loss=weight_loss)
    fast = torchwise.apply(step, make_decision(step, FUSED, *batch(), 1.0))
    for number in range(1, 6):
        fast(*batch(), 1.0 / number)
    assert fast.statistics.optimized == 1
    assert len(fast._dispatcher._taken) == 1


# ---- attributes that are set


def test_what_is_set_is_set_on_the_step_and_heeded_by_the_plan() -> None:
    step = make()
    fast = apply_plan(step)
    fast(*batch())
    fast.clip_norm = 1e-6
    fast(*batch())
    assert step.clip_norm == 1e-6
    norm = torch.nn.utils.get_total_norm([p.grad for p in step.model.parameters() if p.grad is not None])
    assert float(norm) < 1.1e-6
    fast.autocast = None  # as it was
    assert fast.statistics.optimized == 2


def _mean_square(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return outputs.square().mean() + 0 * y.sum()


@pytest.mark.parametrize("on", [lambda fast: fast, lambda fast: fast.original], ids=["wrapper", "original"])
@pytest.mark.parametrize("before", [0, 1])
def test_another_loss_ends_the_plan_which_is_said_once(
    on: Callable[[OptimizedStep], Any], before: int, caplog: pytest.LogCaptureFixture
) -> None:
    step, written = make(), make()
    fast = apply_plan(step)
    run(fast, before)
    written.load_state_dict(copy.deepcopy(fast.state_dict()))
    on(fast).loss = written.loss = _mean_square
    assert same(run(fast), run(written))
    assert step.optimizer.param_groups[0]["fused"] is None
    assert fast.statistics.optimized == before
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and r.name == "torchwise"]
    said = "an attribute of the step was set after the decision for the plan (loss)"
    assert warned == [f"torchwise: training goes on as written, because {said}"]


def test_a_scaler_that_is_set_is_kept_where_the_plan_had_brought_one() -> None:
    fast = apply_plan(make(), Plan(precision="autocast_fp16"))
    fast(*batch())
    fast(*batch())
    assert fast.statistics.optimized == 2, "the one that it brought ends no plan"
    scaler = fast.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    fast(*batch())
    assert fast.original.scaler is scaler
    assert fast.statistics.optimized == 2


def test_other_clipping_ends_a_plan_that_has_it_in_a_graph() -> None:
    fast = apply_plan(make(), Plan(optimizer="fused", capture="step"))
    fast.clip_norm = 0.5
    fast(*batch())
    assert list(fast.statistics.original) == [FallbackReason.STEP_CHANGED]
    assert "clip_norm" in fast.statistics.sentences[FallbackReason.STEP_CHANGED]


def test_ranks_that_try_a_plan_leave_the_batch_as_it_was() -> None:
    step = a_step(Doubling(4, 3))
    fast = RankedStep(step, make_decision(step, FUSED, *batch()), None, None, 1.0)  # type: ignore[arg-type]
    before, (x, y) = copy.deepcopy(step.state_dict()["model"]), batch(seed=0)
    assert fast._rehearse((x, y)) is None
    assert torch.equal(x, batch(seed=0)[0])
    assert all(torch.equal(value, before[name]) for name, value in step.state_dict()["model"].items())


def test_a_step_of_several_ranks_is_not_frozen_but_its_copies_are() -> None:
    step = a_step(Doubling(4, 3))
    fast = RankedStep(step, make_decision(step, FUSED, *batch()), None, None, 1.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a training step of several ranks, which cannot be frozen"):
        torchwise.freeze(fast)
    assert not fast._dispatcher.is_frozen
    other = copy.deepcopy(fast)
    torchwise.freeze(other)
    assert other._dispatcher.is_frozen


# ---- plans that are not used at all


def test_a_stale_decision_is_told_and_the_step_goes_as_written() -> None:
    step, written = make(), make()
    decision = replace(make_decision(step, FUSED, *batch()), structure="another")
    fast = torchwise.apply(step, decision)
    assert same(run(fast), run(written))
    assert fast.statistics.optimized == 0
    assert list(fast.statistics.original) == [FallbackReason.STALE_DECISION]


def test_a_step_that_changed_while_it_was_pickled_is_stale() -> None:
    fast = apply_plan(make())
    fast.original.clip_norm = 0.5
    other = pickle.loads(pickle.dumps(fast))
    other(*batch())
    assert other.statistics.optimized == 0


def test_a_decision_for_eager_changes_nothing() -> None:
    step, written = make(), make()
    fast = torchwise.apply(step, make_decision(step, Plan(), *batch()))
    assert same(run(fast), run(written))


def test_a_plan_that_this_step_cannot_have_is_left_alone() -> None:
    step, written = make(), make()
    assert same(run(apply_plan(step, Plan(optimizer="fused", capture="step"))), run(written))


def test_a_canary_is_refused() -> None:
    step = make()
    with pytest.raises(InputError, match="canary is 10, but a training step cannot be taken twice to compare"):
        torchwise.apply(step, make_decision(step, FUSED, *batch()), canary=10)


@pytest.mark.parametrize("kind", ["forward", "backward", "global"])
def test_a_hook_that_is_registered_later_runs(kind: str) -> None:
    """The plan may enter below the call that runs hooks. While there is a hook, steps are taken as written."""

    def add(step: TrainStep) -> Any:
        if kind == "backward":
            return step.model.register_full_backward_hook(lambda *_: seen.append(step))
        if kind == "global":
            return torch.nn.modules.module.register_module_forward_hook(lambda *_: seen.append(step))
        return step.model.register_forward_hook(lambda _, __, output: output * 3)

    ours, theirs, seen = make(), make(), list[TrainStep]()
    fast = apply_plan(ours)
    run(fast)
    run(theirs)
    for step, hooked in ((fast, ours), (theirs, theirs)):
        hook = add(hooked)
        run(step)
        hook.remove()
    for ours_now, theirs_now in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(ours_now, theirs_now)
    if kind != "forward":
        assert seen.count(ours) == seen.count(theirs) > 0
    assert sum(fast.statistics.original.values()) == 4
    run(fast)
    assert fast.statistics.optimized == 8


class Indescribable:
    """Part of a batch, which has no hash."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")


def test_a_batch_that_cannot_be_described_is_taken_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = apply_plan(make())
    served: Any = served_of(fast)
    for odd in (lambda *_: {}[0], lambda *_: Indescribable()):
        monkeypatch.setattr(step_module, "signature_of", odd)
        assert served.can_run(batch(), {}).reason is FallbackReason.INPUTS_UNREADABLE
        fast(*batch())
        assert set(fast.statistics.original) == {FallbackReason.INPUTS_UNREADABLE}
    assert sum(fast.statistics.original.values()) == 2


def test_its_original_and_its_statistics_can_be_set() -> None:
    step, counts = make(), Statistics()
    fast = apply_plan(step)
    fast(*batch())
    fast.statistics = counts
    assert fast.statistics is counts
    fast(*batch())
    assert counts.optimized == 1
    other = make()
    fast.original = other
    assert fast.original is torchwise.unwrap(fast) is other
    before = [tensor.detach().clone() for tensor in step.model.parameters()]
    fast(*batch())
    assert counts.original == {FallbackReason.STEP_CHANGED: 1}
    assert all(torch.equal(*pair) for pair in zip(before, step.model.parameters(), strict=True))
