"""Numbers that stay on the GPU: to the model they are as Python's would be, or else they are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchwise.compile.transforms.numbers_on_gpu import Number, keep_numbers_on_gpu
from torchwise.errors import NoEffectError, PlanError, UnsupportedError
from torchwise.plan import Plan, PlanSpace
from torchwise.trial.inspection import _compatible

Call = Callable[[torch.Tensor], Any]
X = torch.tensor([[0.5, -1.25, 3.0], [2.0, 0.125, -0.75]])


def keep_on_cpu(call: Call) -> Call:
    """The CPU stands for the GPU."""
    return keep_numbers_on_gpu(call, "cpu")


def rebound(x: torch.Tensor) -> torch.Tensor:
    low = x.min().item()
    high = low
    high += 1.5
    return x.clone().sub_(low) * high


def collect_sums(x: torch.Tensor) -> torch.Tensor:
    total, sums = x.mean().item(), []
    for row in x:
        total += row.max().item()
        sums.append(x * total)
    return torch.stack(sums)


def overwritten(x: torch.Tensor) -> torch.Tensor:
    first = x[0, :1].clone()
    number = first.item()
    first.zero_()
    return x * number + first


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x / x.abs().mean().item(),
        lambda x: x.abs().mean().item() / x,
        lambda x: 2.0 - x * (1 - x.max().item() * 3),
        lambda x: x - 2 * x[0, :1].item() - (-abs(x.min().item())),
        lambda x: torch.mul(x, x.sum().item()).add_(x.max().item()).div_(x.std().item()),
        lambda x: x.true_divide(x.max().item()) * (x.max().item() - x.min().item()),
        rebound,
        collect_sums,
        overwritten,
    ],
    ids=["quotient", "inverse", "minus", "sign", "named", "range", "rebound", "collected", "overwritten"],
)
def test_it_computes_what_pythons_numbers_do(call: Call, dtype: torch.dtype) -> None:
    given = X.to(dtype)
    answer, expected = keep_on_cpu(call)(given), call(given)
    assert answer.dtype is dtype
    torch.testing.assert_close(answer, expected)
    assert torch.equal(given, X)


@pytest.mark.parametrize(
    ("call", "need"),
    [
        (lambda x: x * x.int().max().item() * x.max().item(), None),  # integers are Python's
        (lambda x: x * (1.0 / x.max().item()), "rdiv"),  # which raises for 0
        (lambda x: x * x.max().item() ** 0.5, "pow"),  # which may be complex
        (lambda x: x * math.sqrt(x.max().item()), "float"),
        (lambda x: x * float(x.max().item()), "float"),
        (lambda x: x * 2 if x.max().item() > 0 else x, "gt"),
        (lambda x: x * 2 if x.max().item() else x, "bool"),
        (lambda x: x * len(f"{x.max().item():.2f}"), "format"),
        (lambda x: x * {3.0: 2}.get(x.max().item(), 1), "keys of a dict"),
        (lambda x: x.clamp(max=x.mean().item()), "clamp"),
        (lambda x: torch.arange(3) * x.max().item(), "mul"),  # which would be float64
        (lambda x: x.mean() * x.max().item(), "mul"),  # likewise
        (lambda x: x.half() * x.max().item(), "mul"),  # rounded to half first
        (lambda x: x.bfloat16() / x.max().item(), "div"),
        (lambda x: x * x.max().item().real, "get"),
    ],
)
def test_what_python_would_do_otherwise_is_refused_with_the_line(call: Call, need: str | None) -> None:
    if need is None:
        torch.testing.assert_close(keep_on_cpu(call)(X), call(X))
        return
    with pytest.raises(
        UnsupportedError, match=rf"Python needs the value of a number on the GPU, for .*{need}.*test_numbers_on"
    ):
        keep_on_cpu(call)(X)


def test_rounding_is_pythons_alone() -> None:
    with pytest.raises(TypeError, match="__round__"):
        keep_on_cpu(lambda x: x * round(x.max().item()))(X)


def test_an_answer_that_holds_a_number_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="returns a number"):
        keep_on_cpu(lambda x: (x, {"scale": x.max().item()}))(X)


def test_a_call_that_reads_no_number_there_is_refused() -> None:
    with pytest.raises(NoEffectError, match="changes nothing here") as refused:
        keep_numbers_on_gpu(lambda x: x * x.mean().item())(X)  # the CPU has it already
    assert refused.value.part == ("transforms", "numbers_on_gpu")


def test_nothing_is_left_of_it() -> None:
    kept: list[Any] = []
    keep_on_cpu(lambda x: (kept.append(x.max().item()), x)[1])(X)
    assert isinstance(kept[0], Number)
    assert X.max().item() == 3.0
    assert "item" not in vars(torch.Tensor)


def test_it_needs_a_captured_call_and_eager() -> None:
    Plan(transforms=("numbers_on_gpu",), capture="call")
    for capture in ("none", "branches"):  # no verdict proves branches that are met later
        with pytest.raises(PlanError, match=f"capture is '{capture}': it must be 'call'"):
            Plan(transforms=("numbers_on_gpu",), capture=capture)
    with pytest.raises(PlanError, match="backend is 'inductor', which is given numbers: eager is not"):
        Plan(transforms=("numbers_on_gpu",), capture="call", backend="inductor")


def test_a_search_brings_the_capture_along() -> None:
    def propose_captures(*traits: str) -> set[str]:
        space = PlanSpace("cuda", "inference", frozenset(traits), effort="quick")
        found = {plan for plan, _ in space.neighbours(Plan())}
        return {plan.capture for plan in found if "numbers_on_gpu" in plan.transforms}

    assert propose_captures("reads_scalar") == {"call"}
    assert propose_captures("reads_bool") == set()
    assert _compatible(frozenset({"reads_scalar", "static_form"}), "cuda") == {"static_form"}
