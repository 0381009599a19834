"""Random numbers that the kernels of row programs draw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpu_kernels import Kernels, use_kernels
from row_calls import compile_call
from torchwise.plan import Plan


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Kernels]:
    """The kernels that a test makes."""
    yield from use_kernels(monkeypatch, tmp_path)


def sample(x: torch.Tensor) -> torch.Tensor:
    """Draw noise in a loop."""
    found = []
    for _ in range(4):
        x = x * 0.5 + torch.randn_like(x)
        found.append(x)
    return torch.stack(found)


def test_noise_is_drawn_in_the_kernel_anew_for_each_number_step_and_call(kernels: Kernels) -> None:
    x = torch.zeros(300, 5)
    call = compile_call(sample, x, plan=Plan(backend="row_programs"))
    torch.manual_seed(0)
    first, second = call(x), call(x)
    torch.manual_seed(0)
    assert torch.equal(call(x), first)
    assert kernels.source.count("    for ") == 1
    steps = [first[0], *(first[n] - 0.5 * first[n - 1] for n in range(1, 4)), second[0]]
    for noise in steps:
        assert len(noise.unique()) > 1490
        assert abs(float(noise.mean())) < 0.13  # five standard errors
        assert 0.9 < float(noise.std()) < 1.1
    numbers = torch.stack([noise.flatten() for noise in steps])
    assert float((torch.corrcoef(numbers) - torch.eye(5)).abs().max()) < 0.13


def test_tensors_of_one_form_share_the_work_of_four(kernels: Kernels) -> None:
    functions = [torch.sin, torch.cos, torch.tanh, torch.sigmoid, torch.abs]
    draws = [torch.randn_like] * 5 + [torch.rand_like] * 2

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [x]
        for number, draw in enumerate(draws):
            found.append(functions[number % 5](found[-1]) + draw(x))
        return tuple(found[1:])

    found = compile_call(call, torch.zeros(3000), plan=Plan(backend="row_programs"))(torch.zeros(3000))
    assert kernels.source.count("= draw_randn(") == 2
    assert kernels.source.count("= draw_rand(") == 2  # one of them in a function
    before = [torch.zeros(3000), *found]
    numbers = torch.stack([one - functions[n % 5](before[n]) for n, one in enumerate(found)])
    assert float((torch.corrcoef(numbers) - torch.eye(7)).abs().max()) < 0.1
    assert ((numbers[:5].std(1) > 0.9) & (numbers[:5].std(1) < 1.1)).all()
    assert ((numbers[5:] > -1e-6) & (numbers[5:] < 1 + 1e-6)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_16_bits_are_rounded(dtype: torch.dtype, kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return x + (torch.randn_like(x) + torch.randn_like(x))

    x = torch.zeros(2000, dtype=dtype)
    drawn = compile_call(call, x, plan=Plan(backend="row_programs"))(x)
    assert drawn.dtype is dtype
    assert 1.3 < float(drawn.float().std()) < 1.53
    assert len(kernels) == 1


def test_uniform_numbers_are_in_their_range(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x) * 2 - 1

    drawn = compile_call(call, torch.zeros(3000), plan=Plan(backend="row_programs"))(torch.zeros(3000))
    assert -1 <= float(drawn.min()) < -0.99
    assert 0.99 < float(drawn.max()) <= 1
    assert abs(float(drawn.mean())) < 0.06
    assert len(kernels) == 1


def test_pytorchs_own_numbers_are_drawn_where_the_plan_asks_for_them(kernels: Kernels) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 2 + torch.randn_like(x)) + 1

    x = torch.zeros(30)
    compiled = compile_call(call, x)
    torch.manual_seed(3)
    found = compiled(x)
    torch.manual_seed(3)
    assert torch.allclose(found, call(x))
    assert "seeds" not in kernels.source
