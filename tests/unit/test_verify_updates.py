"""The effect of steps on all state, also if rounding decides its form, or eager's own error is not rounding's."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchwise
from torchwise.records import Check, Outcome, Verdict
from torchwise.verify import StepSubject, verify_step
from torchwise.verify.step_runner import Maker, StepRunner
from torchwise.workload import Example, Workload

Call = Callable[..., Any]


def make_fit_workload(optimizer: Callable[[Any], Any], dtype: torch.dtype = torch.float32, rows: int = 16) -> Workload:
    """Return a step that fits a small network, taken once, so that its optimizer has its state."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).to(dtype)
    step = torchwise.TrainStep(net, torch.nn.functional.mse_loss, optimizer(net.parameters()))
    batch = torch.rand(rows, 1, dtype=dtype), torch.rand(rows, 1, dtype=dtype)
    step(*batch)
    return Workload(step, (Example(batch),))


def reorder_rows(step: Any) -> Any:
    """Sum the rows of a batch in another order."""
    forward = step.model.forward
    step.model.forward = lambda x: forward(x.flip(0)).flip(0)
    return step


def verify_candidate(workload: Workload, make: Maker) -> Verdict:
    step: Any = workload.call
    return verify_step(StepSubject(workload, StepRunner(step, make), make), extra_draws=1, noise_budget_s=0.1)


def check_of(verdict: Verdict, name: str) -> Check:
    return next(check for check in verdict.checks if check.name == name)


class Thrifty(torch.optim.SGD):
    """Keeps a step's gradient if it looks even after rounding, as L-BFGS keeps directions that are long enough."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                kept = self.state[parameter].setdefault("kept", [])
                if int(parameter.grad.abs().sum().double() * 2**40) % 2:
                    kept.append(parameter.grad.clone())
        return super().step(closure)


class Searching(torch.optim.SGD):
    """Counts evaluations as a line search does, until a number that rounding makes is small enough."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                looked = self.state[parameter].setdefault("looked", [0])
                looked[0] += int(parameter.grad.abs().sum().double() * 2**40) % 5
        return super().step(closure)


UNDECIDED: dict[str, Callable[[Any], Any]] = {
    "line search": lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
    "directions": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=6, tolerance_change=0, tolerance_grad=0),
    "thrifty": lambda p: Thrifty(p, lr=0.1),
    "searching": lambda p: Searching(p, lr=0.1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", UNDECIDED)
def test_state_whose_form_rounding_decides_is_held_to_its_effect(kind: str, dtype: torch.dtype) -> None:
    workload = make_fit_workload(UNDECIDED[kind], dtype)
    verdict = verify_candidate(workload, reorder_rows)
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize("kind", ["line search", "thrifty", "searching"])
def test_its_effect_is_looked_at(kind: str) -> None:
    def slower(step: Any) -> Any:
        for group in step.optimizer.param_groups:
            group["lr"] *= 0.9
        return reorder_rows(step)

    verdict = verify_candidate(make_fit_workload(UNDECIDED[kind]), slower)
    assert verdict.outcome is Outcome.FAIL
    assert "optimizer's" not in verdict.reason


class Growing(torch.optim.SGD):
    """Keeps each gradient."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("kept", []).append(parameter.grad.clone())
        return super().step(closure)


def test_state_that_rounding_does_not_decide_must_be_there() -> None:
    def forgetful(step: Any) -> Any:
        def take(*batch: Any) -> Any:
            loss = step(*batch)
            for state in step.optimizer.state.values():
                state["kept"] = state["kept"][-2:]
            return loss

        return take

    workload = make_fit_workload(lambda p: Growing(p, lr=0.1))
    assert verify_candidate(workload, reorder_rows).outcome is Outcome.PASS
    verdict = verify_candidate(workload, forgetful)
    assert verdict.outcome is Outcome.FAIL
    assert "there on one side alone" in verdict.reason


# Steps whose own error is not that of rounding.


def count_call() -> int:
    """Count in a place where nobody looks for state, as on an object that no copy of a step brings along."""
    os.environ["STEPS"] = str(int(os.environ["STEPS"]) + 1)
    return int(os.environ["STEPS"])


class Decaying(torch.optim.SGD):
    """The rate goes down with the number of steps."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] = 0.1 / count_call()
        return super().step(closure)


class Pulling(torch.optim.SGD):
    """Weights are pulled back, as those of Lookahead, by how many steps there were."""

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(1 - 0.1 * (count_call() % 7))
        return found


@pytest.mark.parametrize("optimizer", [Decaying, Pulling])
def test_a_step_that_is_another_each_time_is_not_comparable(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPS", "0")

    def never(step: Any) -> Any:
        step.optimizer.step = lambda closure=None: torch.optim.SGD.step(step.optimizer, closure)
        return step

    verdict = verify_candidate(make_fit_workload(lambda p: optimizer(p, lr=0.1)), never)
    assert verdict.outcome is Outcome.NOT_COMPARABLE, verdict.reason
    assert "keeps state that is not put back" in verdict.reason


def test_a_gradient_that_is_wrong_in_float64_is_no_licence() -> None:
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * (1.5 if gradient.dtype is torch.float64 else 1)

    class OddTanh(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = Odd.apply(torch.tanh(x))
            return found

    workload = make_fit_workload(lambda p: torch.optim.SGD(p, lr=0.1))
    step: Any = workload.call
    step.model[1] = OddTanh()

    def scale_gradient(step: Any) -> Any:
        step.model[0].weight.register_hook(lambda gradient: 1.2 * gradient)
        return step

    verdict = verify_candidate(workload, scale_gradient)
    assert verdict.outcome is Outcome.NOT_COMPARABLE, verdict.reason
    assert "rounding explains" in verdict.reason


# Steps in float64.


class Likelihood(torch.nn.Module):
    """The marginal likelihood of a Gaussian process."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = torch.nn.Parameter(torch.tensor([0.3, 1.0], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel = self.raw[1] * torch.exp(-0.5 * (x[:, None] - x).square() / self.raw[0] ** 2)
        factor = torch.linalg.cholesky(kernel + 1e-2 * torch.eye(len(x), dtype=x.dtype))
        y = torch.sin(6 * x)[:, None]
        return 0.5 * (y * torch.cholesky_solve(y, factor)).sum() + factor.diagonal().log().sum()


def regression() -> Workload:
    model = Likelihood()
    step = torchwise.TrainStep(model, None, torch.optim.Adam(model.parameters(), lr=0.01))
    x = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step(x)
    return Workload(step, (Example((x,)),))


def flip_rows(step: Any) -> Any:
    forward = step.model.forward
    step.model.forward = lambda x: forward(x.flip(0))
    return step


def with_gradient(step: Any) -> Any:
    step.model.raw.register_hook(lambda gradient: gradient * (1 + 1e-9))
    return flip_rows(step)


def with_rate(step: Any) -> Any:
    step.optimizer.param_groups[0]["lr"] *= 1 + 1e-8
    return flip_rows(step)


def test_a_step_in_float64_may_be_reordered() -> None:
    verdict = verify_candidate(regression(), flip_rows)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert 0 < (check_of(verdict, "gradients").error or 0) < 1e-11


@pytest.mark.parametrize(("fault", "name"), [(with_gradient, "gradients"), (with_rate, "state")])
def test_a_small_fault_of_a_step_in_float64_is_found(fault: Maker, name: str) -> None:
    verdict = verify_candidate(regression(), fault)
    assert verdict.outcome is Outcome.FAIL
    assert check_of(verdict, name).outcome is Outcome.FAIL
