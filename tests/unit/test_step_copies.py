"""A copy of a training step shares nothing with it, not even the objects behind its loss and its optimizer."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from step_samples import Blocks, a_step, batch, collect_step_state, same

from torchwise.compile.optimizer import TunedOptimizer
from torchwise.errors import WorkloadError
from torchwise.trial.loading import save
from torchwise.workload import Example, Workload

GLOBAL: torch.nn.Module | None = None


def ce(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, y)


def loss_by_model(model: Blocks) -> Callable[..., torch.Tensor]:
    import math

    return lambda o, y: ce(o, y) + math.exp(-2) * sum(p.square().sum() for p in model.parameters())


def loss_by_parameter(model: Blocks) -> Callable[..., torch.Tensor]:
    weight = model.enter.weight
    return lambda o, y: ce(o, y) + weight.square().sum()


def loss_by_list(model: Blocks) -> Callable[..., torch.Tensor]:
    weights = list(model.blocks.parameters())
    return lambda o, y: ce(o, y) + sum(p.square().sum() for p in weights)


def loss_by_function(model: Blocks) -> Callable[..., torch.Tensor]:
    def penalty(times: int = 1) -> torch.Tensor:
        return model.leave.weight.square().sum() + (penalty(times - 1) if times else 0)

    return lambda o, y: ce(o, y) + penalty()


def loss_by_default(model: Blocks) -> Callable[..., torch.Tensor]:
    def loss(o: torch.Tensor, y: torch.Tensor, head: Any = model.leave, *, enter: Any = model.enter) -> torch.Tensor:
        return ce(o, y) + head.weight.square().sum() + enter.weight.square().sum()

    return loss


def loss_by_partial(model: Blocks) -> Callable[..., torch.Tensor]:
    return functools.partial(lambda o, y, model: ce(o, y) + model.leave.weight.square().sum(), model=model)


def loss_by_closure_partial(model: Blocks) -> Callable[..., torch.Tensor]:
    return functools.partial(lambda o, y, times: ce(o, y) + times * model.leave.weight.square().sum(), times=2)


def loss_by_bound_closure(model: Blocks) -> Callable[..., torch.Tensor]:
    def penalty() -> torch.Tensor:
        return model.leave.weight.square().sum()

    return functools.partial(lambda more, o, y, penalty: ce(o, y) + more() + penalty(), penalty, penalty=penalty)


@pytest.mark.parametrize(
    "of",
    [
        loss_by_model,
        loss_by_parameter,
        loss_by_list,
        loss_by_function,
        loss_by_default,
        loss_by_partial,
        loss_by_closure_partial,
        loss_by_bound_closure,
    ],
)
def test_a_loss_that_closes_over_the_model_goes_along_with_a_copy(of: Any) -> None:
    model = Blocks()
    step = a_step(model, loss=of(model))
    copied = step.copy()
    alone = a_step(fresh := Blocks(), loss=of(fresh))
    for seed in range(3):  # the original stays as it was: whoever reads its weights sees others
        assert copied(*batch(8, seed)) == alone(*batch(8, seed))
    assert same(collect_step_state(copied), collect_step_state(alone))
    assert same([*model.parameters()], [*Blocks().parameters()])


def test_a_compiled_loss_goes_along_also_where_it_is_compiled_with_more() -> None:
    model, fresh = Blocks(), Blocks()
    copied = a_step(model, loss=torch.compile(loss_by_parameter(model), backend="eager")).copy()
    torch.nn.init.zeros_(model.enter.weight)
    whole = torch.compile(copied.loss_of, backend="eager")
    torch.testing.assert_close(whole(*batch(8, 0)), a_step(fresh, loss=loss_by_parameter(fresh)).loss_of(*batch(8, 0)))


def helper() -> torch.Tensor:
    return sum((p.square().sum() for p in GLOBAL.parameters()), torch.zeros(()))  # type: ignore[union-attr]


def with_default(o: torch.Tensor, y: torch.Tensor, penalty: Any = lambda: helper()) -> torch.Tensor:
    return ce(o, y) + penalty()


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: ce(o, y) + sum(p.sum() for q in (1,) for p in GLOBAL.parameters()),  # type: ignore[union-attr]
        lambda o, y: ce(o, y) + helper(),
        with_default,
        functools.partial(lambda o, y, penalty: ce(o, y) + penalty(), penalty=helper),
    ],
    ids=["itself", "by a helper", "by a default", "by what is bound"],
)
def test_a_loss_by_a_global_name_is_refused_where_a_copy_is_wanted(
    loss: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    model = Blocks()
    monkeypatch.setitem(globals(), "GLOBAL", model)
    step = a_step(model, loss=loss)
    step(*batch())  # as written it runs
    with pytest.raises(WorkloadError, match=r"global name 'GLOBAL'.*functools.partial\(loss, GLOBAL=GLOBAL\)"):
        step.copy()
    with pytest.raises(WorkloadError, match="global name 'GLOBAL'"):
        save(Workload(step, (Example(batch()),)), str(tmp_path / "step.pt"))


def test_an_attribute_of_such_a_name_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Blocks()
    monkeypatch.setitem(globals(), "mT", model)
    step = a_step(model, loss=lambda o, y: ce(o.mT.mT, y))
    assert step.copy()(*batch(8, 0)) == step(*batch(8, 0))


def test_a_loss_that_closes_over_what_cannot_be_copied_says_so() -> None:
    numbers = (number for number in range(100))

    def count() -> int:
        return next(numbers)

    step = a_step(loss=lambda o, y: ce(o, y) + count())
    step(*batch())  # as written it runs
    with pytest.raises(WorkloadError, match=r"count closes over 'numbers', which cannot be copied \(TypeE.*global"):
        step.copy()


def test_a_loss_that_closes_over_a_lock_gets_one_of_its_own() -> None:
    lock = threading.Lock()
    step = a_step(loss=lambda o, y: ce(o, y) + lock.locked())
    copied = step.copy()
    with lock:
        assert copied.loss(torch.ones(1, 2), torch.tensor([0])) == ce(torch.ones(1, 2), torch.tensor([0]))


def sign_update(p: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
    p.add_(gradient.sign(), alpha=-rate)


class Lion(torch.optim.Optimizer):
    """Holds its update as an attribute, as implementations of Lion do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self.update_fn = sign_update

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.update_fn(p, p.grad, group["lr"])


def test_an_optimizer_that_holds_a_function_steps_in_copies() -> None:
    step = a_step(optimizer=Lion, scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9))
    copied = step.copy()
    for seed in range(2):
        assert copied(*batch(8, seed)) == step(*batch(8, seed))
    assert same(collect_step_state(copied), collect_step_state(step))
    assert "step" not in vars(a_step(optimizer=Lion).copy().optimizer)


def test_what_a_plan_hangs_on_an_optimizer_stays_with_it() -> None:
    step = a_step(optimizer=torch.optim.Adam)
    held = TunedOptimizer(step.optimizer, "fused")
    copied = step.copy()
    held.restore()
    assert "add_param_group" not in vars(copied.optimizer)


def test_a_scheduler_that_cannot_be_put_back_is_refused() -> None:
    class Duck:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

        def step(self) -> None:
            """Do nothing."""

    with pytest.raises(WorkloadError, match="of type Duck, but must have state_dict"):
        a_step(scheduler=Duck)
