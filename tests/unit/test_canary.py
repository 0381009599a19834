"""A canary: a plan that answers unlike the original is found and given up, and the caller gets the right answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import torchwise
from live_decisions import make_decision
from torchwise.alerts import heard
from torchwise.compile import CompiledPlan
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.runtime import OptimizedFunction, OptimizedModule
from torchwise.runtime.call_guard import VerifiedInputs
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.input_writes import InputWrites

pytestmark = pytest.mark.usefixtures("way")  # calls are taken in Python, and by compiled checks

PLAN = Plan(backend="inductor")
X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that serves a model by another function in its plan's place."""

    def serve(model: Any, plan: Any, *args: torch.Tensor, **options: Any) -> Any:
        made = CompiledPlan(PLAN, plan, lambda _args, _kwargs: plan, lambda: None)
        monkeypatch.setattr("torchwise.runtime.served.compile_plan", lambda *_args, **_options: made)
        return torchwise.apply(model, make_decision(model, PLAN, *(args or (X,))), **options)

    return serve


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def call_repeatedly(fast: Any, times: int, *args: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        return [fast(*(args or (X,))) for _ in range(times)]


def test_a_right_plan_goes_on_and_one_call_in_n_is_compared(serve: Callable[..., Any]) -> None:
    fast = serve(double, lambda x: x + x, canary=3)
    assert isinstance(fast, OptimizedFunction)
    with heard() as alerts:
        call_repeatedly(fast, 10)
    assert fast.statistics.compared == 3
    assert (fast.statistics.mismatched, fast.statistics.optimized, alerts) == (0, 10, [])


def test_a_wrong_answer_is_replaced_the_plan_given_up_and_an_alert_raised(serve: Callable[..., Any]) -> None:
    fast = serve(double, lambda x: x * 2 + 0.01, canary=4)
    with heard() as alerts:
        answers = call_repeatedly(fast, 8)
    assert [bool(torch.equal(a, double(X))) for a in answers] == [False] * 3 + [True] * 5
    assert fast.statistics.mismatched == 1
    [alert] = alerts
    assert alert.kind == "canary_mismatch"
    assert "output is off by" in alert.message
    assert alert.facts["plan"] == "inductor"
    assert FallbackReason.CANARY_MISMATCH in fast.statistics.original
    assert "output is off" in fast.statistics.sentences[FallbackReason.CANARY_MISMATCH]


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        (lambda x: (x * 2).double(), "has dtype torch.float64"),
        (lambda x: x[:, :3] * 2, "has shape"),
        (lambda x: [x * 2], "structure"),
        (lambda x: torch.where(x == 5, torch.nan, x * 2), "is not finite in 1 of 12 elements"),
    ],
)
def test_whatever_else_is_wrong_is_said(serve: Callable[..., Any], plan: Callable[..., Any], found: str) -> None:
    fast = serve(double, plan, canary=1)
    with heard() as alerts:
        call_repeatedly(fast, 2)
    assert found in alerts[0].message


def test_rounding_is_no_mismatch(serve: Callable[..., Any]) -> None:
    fast = serve(double, lambda x: x * 2 * (1 + 1e-5), canary=1)
    call_repeatedly(fast, 5)
    assert (fast.statistics.compared, fast.statistics.mismatched) == (5, 0)


def test_the_error_of_the_proof_is_granted(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fast = serve(double, lambda x: x * 2 * 1.01, canary=1)
    fast._dispatcher._canary._decision = replace(fast.decision, error=5e-3)
    call_repeatedly(fast, 3)
    assert (fast.statistics.compared, fast.statistics.mismatched) == (3, 0)


def cancel_sum(x: torch.Tensor) -> torch.Tensor:
    """A sum that should be zero, and is rounding."""
    return x * 0.1 + x * 0.2 - x * 0.3


@pytest.mark.parametrize(
    ("model", "plan", "error", "mismatched"),
    [
        (double, lambda x: x * 0.6, 0.7, 1),  # no rounding of this model is as large as the error in its verification
        (double, lambda x: x * 2.1, 0.1, 0),
        (cancel_sum, lambda x: 0.3 * x - (0.2 * x + 0.1 * x), 1e8, 0),  # here it is
        (cancel_sum, lambda x: cancel_sum(x) + 1e-3, 1e8, 1),
    ],
)
def test_a_large_error_in_the_proof_is_granted_where_rounding_explains_it(
    serve: Callable[..., Any], model: Any, plan: Any, error: float, mismatched: int
) -> None:
    x = torch.rand(3, 40, generator=torch.Generator().manual_seed(0))
    fast = serve(model, plan, x, canary=1)
    fast._dispatcher._canary._decision = replace(fast.decision, error=error)
    [answer] = call_repeatedly(fast, 1, x)
    assert (fast.statistics.compared, fast.statistics.mismatched) == (1, mismatched)
    assert torch.equal(answer, model(x) if mismatched else plan(x))


@pytest.mark.parametrize(("wrong", "mismatched"), [(1, 0), (7, 1)])
def test_a_flipped_index_is_rounding_and_many_are_not(serve: Callable[..., Any], wrong: int, mismatched: int) -> None:
    x = torch.randn(100, 4)

    def other(x: torch.Tensor) -> torch.Tensor:
        found = x.argmax(1)
        found[:wrong] = 3 - found[:wrong]
        return found

    fast = serve(lambda x: x.argmax(1), other, x, canary=1)
    call_repeatedly(fast, 2, x)
    assert fast.statistics.mismatched == mismatched


def test_a_model_that_draws_random_numbers_cannot_be_compared(
    serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    fast = serve(lambda x: x + torch.randn_like(x), lambda x: x + torch.randn_like(x), canary=1)
    with heard() as alerts, caplog.at_level(logging.WARNING, "torchwise"):
        call_repeatedly(fast, 5)
    assert (fast.statistics.optimized, fast.statistics.mismatched, alerts) == (5, 0, [])
    assert sum("the canary is switched off" in record.message for record in caplog.records) == 1


def test_a_comparison_draws_no_random_numbers_of_the_programs(serve: Callable[..., Any]) -> None:
    fast = serve(lambda x: x * 2 + torch.rand(1) * 0, double, canary=1)
    torch.manual_seed(3)
    call_repeatedly(fast, 3)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1)), "the plan draws none, so none were drawn"


def test_what_a_wrong_plan_wrote_to_an_input_is_mended(serve: Callable[..., Any]) -> None:
    fast = serve(lambda x: x.add_(1), lambda x: x.add_(2), X.clone(), canary=1)
    first, second = X.clone(), X.clone()
    call_repeatedly(fast, 1, first)
    [answer] = call_repeatedly(fast, 1, second)
    assert torch.equal(second, X + 1)
    assert torch.equal(answer, X + 1)


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


def test_a_model_with_state_is_compared_from_the_state_that_the_plan_had(serve: Callable[..., Any]) -> None:
    model = Counting().eval()

    def plan(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    fast = serve(model, plan, canary=1)
    assert isinstance(fast, OptimizedModule)
    answers = call_repeatedly(fast, 3)
    assert float(model.calls) == 3, "comparing counts nothing"
    assert [float(a[0, 0]) for a in answers] == [1.0, 2.0, 3.0]
    assert (fast.statistics.compared, fast.statistics.mismatched) == (3, 0)


def test_an_input_that_cannot_be_copied_costs_the_canary_alone(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fast = serve(double, double, canary=1)
    call_repeatedly(fast, 1)
    monkeypatch.setattr("torchwise.runtime.monitors.Example.clone", lambda _: 1 / 0)
    with caplog.at_level(logging.WARNING, "torchwise"):
        call_repeatedly(fast, 2)
    assert fast.statistics.optimized == 3
    assert any("cannot be copied" in record.message for record in caplog.records)


def test_calls_whose_inputs_share_memory_are_compared_on_copies_that_do(serve: Callable[..., Any]) -> None:
    def add_in_place(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a + b

    fast = serve(add_in_place, add_in_place, X, X.clone(), canary=1)
    inputs = (*fast.decision.inputs, same_twice(add_in_place))
    verified = VerifiedInputs(inputs, dynamic=False)
    fast._dispatcher._verified, fast._dispatcher._writes = verified, InputWrites(add_in_place, verified)
    x = X.clone()
    [answer] = call_repeatedly(fast, 1, x, x)
    assert torch.equal(answer, 2 * (X + 1))
    assert torch.equal(x, X + 1)
    whole = torch.randn(6, 4)
    call_repeatedly(fast, 1, whole[:3], whole[3:])
    call_repeatedly(fast, 1, X.clone(), X.clone())
    assert (fast.statistics.compared, fast.statistics.mismatched) == (3, 0)


def same_twice(call: Any) -> str:
    x = X.clone()
    return make_decision(call, PLAN, x, x).inputs[0]


class Remembering(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 2


def test_state_outside_buffers_is_compared_and_moved_once_a_call(serve: Callable[..., Any]) -> None:
    model = Remembering().eval()
    fast = serve(model, model.forward, canary=1)
    call_repeatedly(fast, 4)
    assert model.calls == 4
    assert (fast.statistics.compared, fast.statistics.mismatched) == (4, 0)


def test_a_plan_that_leaves_state_behind_is_given_up(serve: Callable[..., Any]) -> None:
    model = Remembering().eval()
    fast = serve(model, lambda x: x * 2, canary=1)
    call_repeatedly(fast, 2)
    assert model.calls == 2
    assert fast.statistics.mismatched == 1


def test_a_plan_that_leaves_an_inputs_state_behind_is_mended(serve: Callable[..., Any]) -> None:
    def keep(x: torch.Tensor, holder: Holder) -> torch.Tensor:
        holder.given.append(x)
        return x * len(holder.given)

    holder = Holder()
    fast = serve(keep, lambda x, holder: x * 1, canary=1)
    fast._dispatcher._verified = VerifiedInputs(make_decision(keep, PLAN, X, holder).inputs, dynamic=False)
    answers = call_repeatedly(fast, 2, X, holder)  # type: ignore[arg-type]
    assert len(holder.given) == 2
    assert torch.equal(answers[1], 2 * X)
    assert fast.statistics.mismatched == 1


def test_state_that_cannot_be_put_back_costs_the_canary_alone(
    serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = Remembering().eval()
    model.stream = (n for n in range(9))

    def plan(x: torch.Tensor) -> torch.Tensor:
        next(model.stream)
        return model(x)

    fast = serve(model, plan, canary=1)
    with caplog.at_level(logging.WARNING, "torchwise"):
        call_repeatedly(fast, 3)
    assert model.calls == next(model.stream) == 3
    assert any("the canary is switched off" in record.message for record in caplog.records)


class Holder:
    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []


def test_an_input_that_is_an_object_is_never_given_to_the_original_as_well(serve: Callable[..., Any]) -> None:
    def keep(x: torch.Tensor, holder: Holder) -> torch.Tensor:
        holder.given.append(x)
        return x * 2

    holder = Holder()
    fast = serve(keep, keep, canary=1)
    fast._dispatcher._verified = VerifiedInputs(make_decision(keep, PLAN, X, holder).inputs, dynamic=False)
    call_repeatedly(fast, 3, X, holder)  # type: ignore[arg-type]
    assert len(holder.given) == 3


def test_rare_random_numbers_condemn_no_plan(serve: Callable[..., Any]) -> None:
    def rarely(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if float(torch.rand(())) > 0.1 else x * 3

    for seed in range(30):
        torch.manual_seed(seed)
        fast = serve(rarely, rarely, canary=1)
        call_repeatedly(fast, 10)
        assert fast.statistics.mismatched == 0


def test_once_a_plan_is_found_wrong_its_answer_is_never_returned(serve: Callable[..., Any]) -> None:
    def grow(several: list[torch.Tensor]) -> torch.Tensor:
        several.append(several[0])
        return several[0] * 2

    fast = serve(grow, lambda several: several[0] * 3, canary=1)
    fast._dispatcher._verified = VerifiedInputs(make_decision(grow, PLAN, [X]).inputs, dynamic=False)
    [answer] = call_repeatedly(fast, 1, [X])  # type: ignore[arg-type]
    assert torch.equal(answer, X * 2)
    assert (fast.statistics.optimized, fast.statistics.original.total()) == (0, 1)


def test_the_answer_of_an_in_place_model_is_the_callers_own_tensor(serve: Callable[..., Any]) -> None:
    fast = serve(lambda x: x.add_(1), lambda x: x.add_(2), X.clone(), canary=1)
    x = X.clone()
    [answer] = call_repeatedly(fast, 1, x)
    assert answer is x
    assert torch.equal(x, X + 1)


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "often"])
def test_a_canary_needs_a_number_of_calls(every: Any) -> None:
    with pytest.raises(InputError, match="must be a whole number of calls, at least 1"):
        torchwise.apply(double, make_decision(double, PLAN, X), canary=every)


def test_training_is_not_compared() -> None:
    decision = make_decision(double, PLAN, X)
    training = replace(decision, workload=replace(decision.workload, mode="training"))
    with pytest.raises(InputError, match="the plan is for training"):
        torchwise.apply(double, training, canary=10)
