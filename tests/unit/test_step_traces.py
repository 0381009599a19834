"""All changes by a step or a rehearsal are undone: buffers that are assigned anew, random numbers, counts."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from step_samples import a_step, batch, collect_step_state, same

import torchwise
from live_decisions import make_decision
from torchwise.compile import train_step as realize_step
from torchwise.compile.cuda_graphs.call_state import buffers_of, kept_buffers
from torchwise.compile.cuda_graphs.training_state import TrainingState
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.runtime import api
from torchwise.runtime.input_writes import InputSnapshot
from torchwise.runtime.training import PlannedForward
from torchwise.trial.loading import RepeatableStep
from torchwise.workload.module_state import kept_state


class Counting(torch.nn.Module):
    """Assigns two of its buffers anew in each call, and writes to a third."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)
        for name in ("mean", "count", "written"):
            self.register_buffer(name, torch.zeros(4 if name == "mean" else ()))
        self.register_buffer("cache", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.count = self.count + 1
            self.written += 1
        return self.linear(x - self.mean)


def objects(model: torch.nn.Module) -> list[int]:
    return [id(buffer) for buffer in model.buffers()]


def a_snapshot(model: torch.nn.Module) -> Callable[[], None]:
    return a_step(model).snapshot()


def an_undo(model: torch.nn.Module) -> Callable[[], None]:
    return InputSnapshot(model, (), {})


def a_context(model: torch.nn.Module) -> Callable[[], None]:
    context = kept_state(model)
    context.__enter__()
    return lambda: context.__exit__(None, None, None)  # type: ignore[return-value]


def a_recording(model: torch.nn.Module) -> Callable[[], None]:
    return TrainingState([model], [], []).snapshot()


@pytest.mark.parametrize("keeping", [a_snapshot, an_undo, a_context, a_recording])
def test_buffers_that_are_assigned_anew_are_put_back(keeping: Callable[[torch.nn.Module], Callable[[], None]]) -> None:
    model = Counting()
    model(batch()[0])
    values, places = copy.deepcopy(model.state_dict()), objects(model)
    put_back = keeping(model)
    for _ in range(2):
        model(batch()[0])
    assert model.count == 3
    put_back()
    assert objects(model) == places
    assert same([*values.values()], [*model.state_dict().values()])


@pytest.mark.parametrize(
    "grow",
    [
        lambda model: setattr(model, "cache", torch.ones(5)),
        lambda model: setattr(model.cache, "data", torch.ones(5)),
        lambda model: model.cache.resize_(5).fill_(1),
    ],
    ids=["assigned", "as its data", "in place"],
)
def test_a_cache_that_grew_while_a_call_was_recorded_is_left(grow: Callable[[Counting], Any]) -> None:
    model = Counting()
    with kept_buffers(model):
        grow(model)
        model.written += 1
    assert torch.equal(model.cache, torch.ones(5))
    assert model.written == 0


def test_a_buffer_that_several_modules_hold_is_copied_once() -> None:
    model = torch.nn.Sequential(Counting(), Counting())
    mask = torch.zeros(6)
    for part in model:
        part.register_buffer("mask", mask)
    kept = [buffer for buffer in buffers_of(model) if buffer.name == "mask"]
    assert [buffer.holder for buffer in kept] == [*model]
    assert len({buffer.values.data_ptr() for buffer in kept}) == 1
    model[0].mask = torch.ones(6)
    model[1].mask += 2
    for buffer in kept:
        buffer.put_back()
    assert model[0].mask is model[1].mask is mask
    assert not mask.any()


@pytest.mark.parametrize("keep", [kept_buffers, kept_state])
def test_buffers_that_nobody_changed_are_not_written(keep: Any) -> None:
    model = Counting()
    with keep(model):
        pass
    assert [buffer._version for buffer in model.buffers()] == [0, 0, 0, 0]


def test_a_plan_that_fails_at_once_leaves_the_buffers_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(self: Any, *given: Any) -> torch.Tensor:
        self._step.loss_of(*given)
        raise RuntimeError("a kernel fails")

    step, written = a_step(Counting()), a_step(Counting())
    fast = torchwise.apply(step, make_decision(step, Plan(optimizer="fused"), *batch()))
    monkeypatch.setattr(realize_step.CompiledStep, "compute", compute)
    for seed in range(3):
        fast(*batch(8, seed))
        written(*batch(8, seed))
    assert same(collect_step_state(fast), collect_step_state(written))


def train_loop(model: torch.nn.Module, planned: PlannedForward | None = None, steps: int = 5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for seed in range(steps):
        if planned:
            planned.between_steps()
        x, y = batch(8, seed)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_a_forward_is_rehearsed_without_a_trace_and_its_counts_are_the_loops_alone() -> None:
    model, bare = Counting(), Counting()
    train_loop(bare)
    decision = make_decision(model, Plan(threads=torch.get_num_threads() + 1), batch()[0])
    planned = PlannedForward(model, replace(decision, workload=replace(decision.workload, mode="training")))
    train_loop(model, planned)
    assert same([*model.state_dict().values()], [*bare.state_dict().values()])
    assert planned.statistics.optimized == 4
    planned.close()
    assert planned.statistics.optimized == 4


def test_a_step_in_a_worker_goes_on_beyond_the_end_of_its_schedule() -> None:
    def one_cycle(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4)

    step = a_step(scheduler=one_cycle)
    step(*batch(8, 0))
    rates = []
    for timed in (RepeatableStep.from_step(step.copy()), RepeatableStep.from_step(step.copy()).copy()):
        rates.append([])
        for seed in range(10):
            timed(*batch(8, seed))
            rates[-1].append(timed.optimizer.param_groups[0]["lr"])
    assert rates[0] == rates[1]
    assert rates[0][:3] == rates[0][3:6] == rates[0][6:9]
    assert len(set(rates[0][:3])) == 3
    for seed in range(3):
        step(*batch(8, seed))
    with pytest.raises(ValueError, match="Tried to step"):  # the user's own goes on to say so
        step(*batch(8, 0))


def test_a_search_leaves_the_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw_and_fail(*_: Any, **__: Any) -> Any:
        random.random()
        raise InputError("enough")

    monkeypatch.setattr(api, "make_request", draw_and_fail)
    random.seed(5)
    before = random.getstate()
    with pytest.raises(InputError, match="enough"):
        torchwise.tune(Counting(), batch()[0], progress=False)
    assert random.getstate() == before
