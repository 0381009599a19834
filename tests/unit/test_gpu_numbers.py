"""Row programs on a GPU compute with numbers as eager does: signs of zero, types of 16 bits, and wide integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gpu_kernels import Kernels, use_kernels
from row_calls import compile_call
from row_cases import Case, check


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Kernels]:
    """The kernels that a test makes."""
    yield from use_kernels(monkeypatch, tmp_path)


def test_a_zero_has_its_sign_after_minus(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.atan2(-x, x - 1) * 2

    x = torch.tensor([[0.0, -0.0, 1.0], [0.5, -1.0, 0.0]])
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert not kernels.left


def compare_with_each(x: torch.Tensor) -> torch.Tensor:
    """Another bound in each repetition."""
    for step in range(5):
        x = torch.where(x >= 0.1 + 0.2 * step, x * 0.5, x)
    return x


COMPARED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a number": lambda x: torch.where(x > 0.1, x * 2, -x),
    "equal to a number": lambda x: torch.where(x == 0.1, x * 2, -x),
    "a number beyond the type": lambda x: torch.where(x < 1e39, x * 2, -x),
    "a tensor of another type": lambda x: torch.where(x > x.float() * 1.0001, x * 2, -x),
}
ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a constant": lambda x: torch.where(x >= torch.full((), 0.1), x * 2, -x),
    "one in each repetition": compare_with_each,
}
"""Numbers that a kernel rounds. Triton's interpreter cuts numbers of bfloat16 off, and a GPU rounds them."""


@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_of_16_bits_are_compared_as_such(dtype: torch.dtype, name: str, kernels: Kernels) -> None:
    check_comparison(COMPARED[name], dtype, kernels)


@pytest.mark.parametrize("name", ROUNDED)
def test_numbers_are_rounded_before_they_are_compared(name: str, kernels: Kernels) -> None:
    check_comparison(ROUNDED[name], torch.float16, kernels)


def check_comparison(call: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, kernels: Kernels) -> None:
    x = torch.tensor([[0.1, 0.3, 0.5], [0.7, 0.9, -0.1]]).to(dtype)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert not kernels.left


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.bool], ids=str)
def test_numbers_become_bfloat16_by_way_of_float32(dtype: torch.dtype, kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return (x + x).bfloat16() * 2 if dtype is not torch.bool else (x | x).bfloat16() * 2

    x = torch.tensor([[0.1, 0.3, 1.0], [2.0, 70.0, -0.1]]).to(dtype)
    check(compile_call(call, x), Case(call, lambda _: (), tolerance=1e-2), (x,))
    assert not kernels.left


LONG = 10**9
RANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "features": lambda x: (x + torch.arange(0, 5 * LONG, LONG)).sum(-1) * 2,
    "rows": lambda x: (x.t() * 3 + torch.arange(0, 5 * LONG, LONG)) * 2,
    "from afar": lambda x: (x + torch.arange(-9 * LONG, 5 - 9 * LONG)).sum(-1) * 2,
    "parts": lambda x: (x[:, :1] + torch.arange(0, 300 * LONG, LONG)).sum(-1) * 2,
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges_may_be_wider_than_32_bits(name: str, kernels: Kernels) -> None:
    call, x = RANGES[name], torch.arange(25).view(5, 5)
    check(compile_call(call, x), Case(call, lambda _: ()), (x,))
    assert not kernels.left
