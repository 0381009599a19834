"""Row programs with complex numbers answer as PyTorch does, also for calls that they are not for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from brief import BRIEF
from row_calls import compile_call
from torchwise.compile import programs as row_programs
from torchwise.plan import PlanSpace, Trait
from torchwise.plan.choice import load_choices
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial import Job
from torchwise.trial.inspection import inspect


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forget code that other tests compiled, and compute without gradients."""
    with torch.no_grad():
        yield
    torch.compiler.reset()


def draw(*size: int, dtype: torch.dtype = torch.complex64, seed: int = 0) -> Tensor:
    return torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def iterate(z: Tensor, c: Tensor) -> Tensor:
    for _ in range(20):
        z = z * z / (1 + z.abs()) + c
    return z


def transform(z: Tensor, c: Tensor, x: Tensor) -> list[Tensor]:
    """Use complex numbers with real ones, in all layouts and kinds of answers."""
    w = torch.exp(1j * x) * z
    return [
        *(z + c, z - 2 * c, z * x, z / (c + 3), -z, z.conj() * c, w, w.real + 1, w.imag * 2, w.abs(), w.angle()),
        *(z.t() * 1, (z * c).t(), z.sum(-1), (z * c).mean(0), torch.complex(x, x + 1), torch.view_as_real(z * c)),
        *(z[:, 1:] * c[:, :-1], torch.stack([z, c]), z.abs().square().sum(), torch.where(x > 0, z, c), z * (2 - 1j)),
        *(z.real + x, torch.polar(x.abs(), x), z.unsqueeze(0) + c, z.exp(), (z * z.conj()).real, z.flatten()[2:] * 2),
    ]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_loop_over_complex_numbers_is_one_region(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    regions: list[Any] = []
    make = row_programs.make_region
    monkeypatch.setattr(row_programs, "make_region", lambda *args: regions.append(args[2]) or make(*args))
    z, c = draw(33, 7, dtype=dtype), draw(33, 7, dtype=dtype, seed=1)
    call = compile_call(iterate, z, c)
    torch.testing.assert_close(call(z, c), iterate(z, c))
    (region,) = regions
    assert region.number_of_operators > 100
    exact = iterate(z.to(torch.complex128), c.to(torch.complex128))
    own, found = ((one.to(torch.complex128) - exact).abs().max() for one in (iterate(z, c), call(z, c)))
    assert found <= 4 * own + 1e-15, "as right as eager"


def test_answers_are_those_of_pytorch_in_value_type_and_layout() -> None:
    given = draw(6, 6), draw(6, 6, seed=1), torch.randn(6, 6)
    call = compile_call(transform, *given)
    for found, wanted in zip(call(*given), transform(*given), strict=True):
        torch.testing.assert_close(found, wanted, check_stride=True)
        assert found.is_conj() == wanted.is_conj()


@pytest.mark.parametrize(
    "change",
    [
        lambda z: z.conj(),
        lambda z: z.t(),
        lambda z: torch.stack([z, z])[:, ::1][1],
        lambda z: z.to(torch.complex128),
        lambda z: z[:4],
        lambda z: z[:, :1].expand(6, 6),
        lambda z: z.imag,
        lambda z: torch.view_as_complex(torch.randn(6, 6, 3)[..., 1:].contiguous()),
        lambda z: z[:0],
        lambda z: z.conj().conj(),
        lambda z: torch._neg_view(z.real),
    ],
)
def test_calls_of_other_forms_are_right(change: Callable[[Tensor], Tensor]) -> None:
    def compute(z: Tensor, c: Tensor) -> Tensor:
        return (z * 2 + c).abs() * 3 + (z - 1)

    z, c = draw(6, 6), torch.tensor(0.3 - 2j)
    call = compile_call(compute, z, c)
    other = change(draw(6, 6, seed=4))
    for given in (z, other, z):
        torch.testing.assert_close(call(given, c), compute(given, c), check_stride=True)


def test_weights_and_changed_weights_are_read() -> None:
    class Rotates(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(draw(5))
            self.register_buffer("phase", draw(5, seed=3))

        def forward(self, z: Tensor) -> Tensor:
            phase: Any = self.phase
            return (z * self.weight + phase) * phase.conj() - self.weight

    model, z = Rotates().eval(), draw(4, 5, seed=9)
    call = compile_call(model, z)
    torch.testing.assert_close(call(z), model(z))
    model.weight.mul_(1j)
    model.get_buffer("phase").add_(1)
    torch.testing.assert_close(call(z), model(z))
    model.weight.data = draw(5, seed=11)
    torch.testing.assert_close(call(z), model(z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lengths_of_extreme_parts_are_those_of_pytorch(dtype: torch.dtype) -> None:
    most, least = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    values = [0.0, -0.0, 1.0, -3.0, math.inf, -math.inf, math.nan, most, -most / 2, least, least / 8, 4e18, 1e-20]
    x, y = (torch.tensor(part, dtype=dtype) for part in zip(*itertools.product(values, repeat=2), strict=True))

    def measure(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.hypot(x, y) + 0, torch.complex(x, y).abs() + 0

    for found, wanted in zip(compile_call(measure, x, y)(x, y), measure(x, y), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_what_cannot_be_split_runs_beside_the_regions() -> None:
    def compute(z: Tensor) -> Tensor:
        for _ in range(3):
            z = torch.fft.fft(z * 2 + 1) / 8
        return torch.linalg.inv(z) * z

    z = draw(8, 8)
    call = compile_call(compute, z)
    torch.testing.assert_close(call(z), compute(z), rtol=1e-3, atol=1e-4)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        call(torch.zeros_like(z))


LOOP = """
import torch

def loop(z, c):
    for _ in range(8):
        z = z * z + c
    return z

def make():
    return loop, (torch.randn(300_000, dtype=torch.complex64), torch.randn(300_000, dtype=torch.complex64))

def multiply():
    return torch.nn.Linear(900, 900).eval(), (torch.randn(4000, 900),)
"""


@pytest.mark.parametrize(("name", "is_open"), [("make", True), ("multiply", False)])
def test_a_search_has_them_for_loops_of_any_length_and_not_for_long_products(
    name: str, is_open: bool, tmp_path: Path
) -> None:
    file = tmp_path / "loops.py"
    file.write_text(LOOP)
    found = inspect(Job("inspect", WorkloadSpec(f"{file}:{name}"), effort=BRIEF), lambda _: None)
    choice = load_choices()["backend", "row_programs"]
    space = PlanSpace("cpu", "inference", found.traits, effort="quick")
    assert (space.excludes(choice) is None) is is_open
    assert (Trait.ROW_REGIONS in found.traits) is is_open


def test_noise_is_drawn_in_order() -> None:
    def compute(z: Tensor) -> Tensor:
        return z * torch.randn_like(z) + torch.rand(z.shape) * 2j

    z = draw(9)
    call = compile_call(compute, z)
    for seed in range(3):
        torch.manual_seed(seed)
        found = call(z)
        torch.manual_seed(seed)
        torch.testing.assert_close(found, compute(z))
