"""Eager's own error as the noise floor: when it is void, and the limit for a model without anything more precise."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchwise.records import Check, Outcome, Verdict
from torchwise.verify import Subject, verify
from torchwise.verify.reference import Reference
from torchwise.workload import Example, Workload

Call = Callable[..., Any]
DOUBLE = torch.float64


def verify_candidate(call: Call, candidate: Call, *args: torch.Tensor, **how: Any) -> Verdict:
    return verify(Subject(Workload(call, (Example(args),)), candidate, call, **how), extra_draws=1)


def values(verdict: Verdict) -> Check:
    return next(check for check in reversed(verdict.checks) if check.name == "values")


def draw_values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


# Operators that answer otherwise under a dispatch mode.


def weights(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.pinv(x).abs()


def fit_lstsq(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.lstsq(x, x[:, :1] + 1).solution.abs()


class Steered(torch.nn.Module):
    """A filter bank that inverts a complex weight."""

    def __init__(self) -> None:
        super().__init__()
        self.steer = torch.nn.Parameter(draw_values(6, 4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ torch.linalg.pinv(self.steer).mT).abs()


@pytest.mark.parametrize("call", [weights, fit_lstsq, Steered()], ids=["pinv", "lstsq", "weight"])
def test_the_reference_is_not_asked_under_a_mode_that_it_answers_otherwise_in(call: Call) -> None:
    x = draw_values(6, 6 if isinstance(call, Steered) else 4, dtype=torch.complex64)
    eager = call(x)
    seen = Reference(call).observe_example(Example((x,)), seed=0)
    assert seen is not None
    assert torch.allclose(dict(seen.leaves)["output"], eager.double(), rtol=1e-4)
    assert verify_candidate(call, call, x).outcome is Outcome.PASS
    wrong = verify_candidate(call, lambda x: call(x) * 1.2, x)
    assert wrong.outcome is Outcome.FAIL
    assert "eager by" in wrong.reason


def noisy(x: torch.Tensor) -> torch.Tensor:
    return weights(x) + 1e-3 * torch.rand(x.shape[::-1])


def narrow_weights(x: torch.Tensor) -> torch.Tensor:
    return weights(x.to(torch.complex64)).to(torch.float32)


@pytest.mark.parametrize("call", [noisy, narrow_weights])
def test_where_the_mode_is_needed_and_in_the_way_eager_is_its_own_reference(call: Call) -> None:
    x = draw_values(6, 4, dtype=torch.complex64)
    assert Reference(call).observe_example(Example((x,)), seed=0) is None
    assert verify_candidate(call, lambda x: call(x) * 1.1, x).outcome is Outcome.FAIL
    right = verify_candidate(call, call, x)
    assert right.outcome is Outcome.PASS
    assert "there is no float64 reference" in values(right).detail


def test_noise_that_no_mode_is_in_the_way_of_keeps_its_reference() -> None:
    seen = Reference(lambda x: x + torch.rand(4)).observe_example(Example((draw_values(4),)), seed=0)
    assert seen is not None
    assert dict(seen.leaves)["output"].dtype is DOUBLE


# Answers of a few numbers, of which eager may be near the exact ones by chance.


def cancel(x: torch.Tensor) -> torch.Tensor:
    return x[0] * x[1] - x[2]


EXACT = torch.tensor([1.5, 0.75, 1.109375])
"""Of these, eager rounds nothing."""
ULP = torch.finfo(torch.float32).eps


@pytest.mark.parametrize(("off", "outcome"), [(ULP, Outcome.PASS), (100 * ULP, Outcome.FAIL)])
@pytest.mark.parametrize("count", [1, 4])
def test_a_rounding_of_a_part_is_granted_where_eager_happened_to_have_none(
    off: float, outcome: Outcome, count: int
) -> None:
    x = EXACT[:, None].expand(3, count).clone()
    assert torch.equal(cancel(x), cancel(x.double()).float())
    assert verify_candidate(cancel, lambda x: cancel(x) + off, x).outcome is outcome


def test_many_numbers_are_judged_by_the_error_that_eager_has_in_them() -> None:
    x = EXACT[:, None].expand(3, 64).clone()
    assert verify_candidate(cancel, lambda x: cancel(x) + ULP, x).outcome is Outcome.FAIL


# Errors of eager's own that rounding does not explain.


def make_float64_fault(by: float) -> Call:
    """Return a function that is wrong in float64 alone, as a kernel may be."""
    return lambda x: torch.tanh(x) * (1 + by if x.dtype is DOUBLE else 1)


@pytest.mark.parametrize("by", [2e-3, 0.1, 0.7, 5.0])
def test_a_reference_that_is_wrong_is_no_licence(by: float) -> None:
    call = make_float64_fault(by)
    verdict = verify_candidate(call, lambda x: call(x) * (1 + by / 2), draw_values(64))
    assert verdict.outcome is Outcome.NOT_COMPARABLE
    assert "rounding explains" in verdict.reason
    assert verify_candidate(call, call, draw_values(64)).outcome is Outcome.PASS, (
        "what is eager's own but for roundings needs no noise floor"
    )


def test_a_call_that_is_another_each_time_is_said_to_keep_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLS", "0")  # state that is not looked for

    def drift(x: torch.Tensor) -> torch.Tensor:
        os.environ["CALLS"] = str(int(os.environ["CALLS"]) + 1)
        return x * (1 + 0.3 * int(os.environ["CALLS"]))

    for candidate in (drift, lambda x: 2 * x):
        verdict = verify_candidate(drift, candidate, draw_values(64))
        assert verdict.outcome is Outcome.NOT_COMPARABLE
        assert "keeps state" in verdict.reason


def logistic(x: torch.Tensor) -> torch.Tensor:
    return 3.9 * x * (1 - x)


def kick_rotor(x: torch.Tensor) -> torch.Tensor:
    """A rotor that is kicked hard (the standard map)."""
    angle, momentum = x.unbind(-1)
    momentum = momentum + 6 * torch.sin(angle)
    return torch.stack([torch.remainder(angle + momentum, 2 * torch.pi), momentum], -1)


def henon(x: torch.Tensor) -> torch.Tensor:
    p, q = x.unbind(-1)
    return torch.stack([1 - 1.4 * p * p + q, 0.3 * p], -1)


def rollout(step: Call, steps: int, far: float = 0.0) -> Call:
    def roll(x: torch.Tensor) -> torch.Tensor:
        for _ in range(steps):
            x = step(x)
        return x + far

    return roll


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(
    ("step", "steps", "size", "far"),
    [(logistic, 60, 1, 0.0), (logistic, 60, 1, 100.0), (kick_rotor, 40, 2, 0.0), (henon, 90, 2, 0.0)],
    ids=["logistic", "far from zero", "kicked", "henon"],
)
def test_chaos_is_not_comparable(step: Call, steps: int, size: int, far: float, dtype: torch.dtype) -> None:
    x = 0.1 + 0.5 * torch.rand(100, size, dtype=dtype, generator=torch.Generator().manual_seed(0))
    roll = rollout(step, steps if dtype is torch.float32 else 2 * steps, far)
    for nudge in (1e-3, torch.finfo(dtype).eps):
        verdict = verify_candidate(roll, lambda x, nudge=nudge: roll(x * (1 + nudge)), x)
        assert verdict.outcome is Outcome.NOT_COMPARABLE, verdict.reason
        assert "rounding alone moves it" in verdict.reason


def test_another_reason_comes_before_one_that_rounding_hides() -> None:
    roll, x = rollout(logistic, 60), 0.1 + 0.5 * torch.rand(100, 1, generator=torch.Generator().manual_seed(0))
    hidden = verify_candidate(roll, lambda x: roll(x * 1.001), x)
    assert hidden.is_hidden_by_rounding
    beside: dict[str, Any] = {"a generator": lambda: (one for one in ()), "a number": lambda: 3}
    for name, make in beside.items():
        found = verify_candidate(lambda x: (roll(x), make()), lambda x: (roll(x * 1.001), make()), x)  # noqa: B023
        assert found.outcome is Outcome.NOT_COMPARABLE
        assert found.is_hidden_by_rounding == (name == "a number"), found.reason


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_short_rollout_is_compared(dtype: torch.dtype) -> None:
    x = torch.rand(100, dtype=dtype, generator=torch.Generator().manual_seed(0))
    roll = rollout(logistic, 20 if dtype is torch.float32 else 60)
    reordered = rollout(lambda x: 3.9 * (x - x * x), 20 if dtype is torch.float32 else 60)
    assert verify_candidate(roll, reordered, x).outcome is Outcome.PASS
    assert verify_candidate(roll, lambda x: roll(x * (1 + 1e3 * torch.finfo(dtype).eps)), x).outcome is Outcome.FAIL


# Errors that must not be refused for it.


def hilbert(x: torch.Tensor) -> torch.Tensor:
    """Solve with a matrix that is all but singular."""
    places = torch.arange(6, dtype=x.dtype)
    return torch.linalg.solve(1 / (places[:, None] + places + 1), x)


def cancel_terms(x: torch.Tensor) -> torch.Tensor:
    """The rest after large terms cancel."""
    return (10 * x + 10).square() - 100 * (x + 1).square() + 1e-3 * x


def residual(x: torch.Tensor) -> torch.Tensor:
    """A difference that should be zero, and is rounding."""
    square = x @ x.mT + torch.eye(len(x), dtype=x.dtype)
    return square @ torch.linalg.solve(square, x) - x


def find_largest(x: torch.Tensor) -> torch.Tensor:
    """Return the index of the largest of many nearly equal numbers."""
    return (1 + 1e-6 * x).argmax(-1)


def route_rows(x: torch.Tensor) -> torch.Tensor:
    """Send each row through one of two branches by a score, with near ties."""
    score = (1 + 2e-5 * x).sum(-1, keepdim=True)
    return torch.where(score > score.mean(), x, -x)


def keep_largest(x: torch.Tensor) -> torch.Tensor:
    """Keep the largest of each row, by equality."""
    x = torch.tanh(1e-3 * x)
    return torch.where(x == x.amax(-1, keepdim=True), 1e3 * x, 0.0)


@pytest.mark.parametrize(
    ("call", "reordered"),
    [
        (hilbert, lambda x: hilbert(x.flip(-1)).flip(-1).mT.contiguous().mT * (1 + 2e-6)),
        (cancel_terms, lambda x: (10 * (x + 1)) ** 2 - (10 * x + 10) ** 2 + 1e-3 * x),
        (residual, lambda x: (x @ x.mT) @ (y := torch.linalg.solve(x @ x.mT + torch.eye(len(x)), x)) + y - x),
        (find_largest, lambda x: (x * 1e-6 + 1).argmax(-1)),
        (route_rows, lambda x: torch.where((s := (1 + 2e-5 * x).flip(-1).sum(-1, keepdim=True)) > s.mean(), x, -x)),
        (keep_largest, lambda x: keep_largest(x) * (1 + 1e-6)),
    ],
    ids=["hilbert", "cancelled", "residual", "ranked", "routed", "equalled"],
)
def test_ill_conditioned_and_discontinuous_models_are_compared(call: Call, reordered: Call) -> None:
    x = draw_values(6 if call is hilbert else 400, 40)
    right = verify_candidate(call, reordered, x)
    assert right.outcome is Outcome.PASS, right.reason
    wrong = verify_candidate(call, lambda x: call(x) * 2 + 1, x)
    assert wrong.outcome is Outcome.FAIL, wrong.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_deep_models_of_low_precision_are_compared(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    blocks = [(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)) for _ in range(12)]
    model = torch.nn.Sequential(*(layer for block in blocks for layer in block)).to(dtype).eval()
    x = draw_values(16, 64).to(dtype)

    def flip_features(x: torch.Tensor) -> torch.Tensor:
        for linear, act, norm in blocks:
            x = norm(act((linear.weight.flip(1) @ x.flip(1).mT).mT + linear.bias))
        return x

    right = verify_candidate(model, flip_features, x, training=True)
    assert right.outcome is Outcome.PASS, right.reason
    assert verify_candidate(model, lambda x: flip_features(x) * 1.2, x).outcome is Outcome.FAIL


# Models of the highest precision there is.


class Likelihood(torch.nn.Module):
    """The marginal likelihood of a Gaussian process, whose matrix has a condition of some thousands."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = torch.nn.Parameter(torch.tensor([0.3, 1.0], dtype=DOUBLE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel = self.raw[1] * torch.exp(-0.5 * (x[:, None] - x).square() / self.raw[0] ** 2)
        factor = torch.linalg.cholesky(kernel + 1e-2 * torch.eye(len(x), dtype=x.dtype))
        y = torch.sin(6 * x)[:, None]
        return (0.5 * (y * torch.cholesky_solve(y, factor)).sum() + factor.diagonal().log().sum()).reshape(1)


def solve_hilbert(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(len(x), dtype=x.dtype)
    return torch.linalg.solve(1 / (places[:, None] + places + 1), x)


def solve_permuted(x: torch.Tensor) -> torch.Tensor:
    """Solve with rows and columns in another order."""
    places = torch.arange(len(x), dtype=x.dtype).flip(0)
    return torch.linalg.solve(1 / (places[:, None] + places + 1), x.flip(0)).flip(0)


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    """Add up as plain compiled loops do."""
    return x.view(-1, 8).cumsum(0)[-1].sum()


def sum_deviations(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean()).sum()


def iterate_map(x: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        x = torch.sin(3 * x) + 0.1 * x.roll(1)
    return x


def iterate_expanded(x: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        x = 0.1 * x.roll(1) + 3 * x.sin() - 4 * x.sin() ** 3
    return x


@pytest.mark.parametrize(
    ("call", "reordered", "shape", "fault"),
    [
        (model := Likelihood(), lambda x: model(x.flip(0)), (40,), lambda y: y * (1 + 1e-9)),
        (solve_hilbert, solve_permuted, (8, 3), lambda y: y * (1 + 1e-5)),
        (torch.sum, one_by_one, (400_000,), lambda y: y * (1 + 1e-9)),
        (
            lambda x: (x - x.mean()).sum(),
            lambda x: one_by_one(x - one_by_one(x) / len(x)),
            (400_000,),
            lambda y: y + 1e-6,
        ),
        (iterate_map, iterate_expanded, (64,), lambda y: y * (1 + 1e-9)),
    ],
    ids=["likelihood", "solve", "sum", "cancelling sum", "iterated"],
)
def test_in_float64_another_order_passes_and_a_fault_does_not(
    call: Call, reordered: Call, shape: tuple[int, ...], fault: Call
) -> None:
    x = draw_values(*shape, dtype=DOUBLE)
    training = isinstance(call, torch.nn.Module)
    right = verify_candidate(call, reordered, x, training=training)
    assert right.outcome is Outcome.PASS, right.reason
    assert not torch.equal(call(x), reordered(x)), "the other order is no other, so that nothing was tried"
    wrong = verify_candidate(call, lambda x: fault(reordered(x)), x, training=training)
    assert wrong.outcome is Outcome.FAIL, wrong.reason


class Amplified(torch.autograd.Function):
    """Gives a gradient that is too large by one in 10⁹."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (1 + 1e-9)


def test_a_fault_in_a_gradient_of_float64_is_found() -> None:
    model, x = Likelihood(), draw_values(40, dtype=DOUBLE)
    wrong = verify_candidate(model, lambda x: Amplified.apply(model(x.flip(0))), x, training=True)
    assert wrong.outcome is Outcome.FAIL
    assert "gradient of raw" in wrong.reason


def test_perturbed_runs_are_made_where_they_decide_something_and_not_else() -> None:
    calls: list[int] = []

    def count_tanh(x: torch.Tensor) -> torch.Tensor:
        calls.append(0)
        return torch.tanh(x)

    for x in (draw_values(64), draw_values(64, dtype=DOUBLE)):
        calls.clear()
        verify(Subject(Workload(count_tanh, (Example((x,)),)), torch.tanh, count_tanh), extra_draws=0)
        assert len(calls) <= 4, "eager, the reference twice, and the check of held outputs"
