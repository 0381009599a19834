"""Row programs read and write memory, and draw random numbers, as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from row_calls import compile_call, keep_regions
from torchwise.compile import programs
from torchwise.errors import UnsupportedError


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forget code that other tests compiled, and compute without gradients."""
    with torch.no_grad():
        yield
    torch.compiler.reset()


def test_random_numbers_are_those_of_pytorch() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x * 2) + torch.randn_like(x)
        z = y * torch.rand(4, 5) + torch.bernoulli(torch.sigmoid(y))
        return z * 2 + torch.randn_like(z) * y

    x = torch.randn(4, 5)
    compiled = compile_call(call, x)
    compiled(x)
    for seed in range(2):
        torch.manual_seed(seed)
        found = compiled(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(found, call(x))


def test_random_numbers_lie_as_in_eager() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return torch.randn_like(y) + torch.tanh(y) * torch.rand_like(x) + torch.bernoulli(y.sigmoid())

    x = torch.randn(6, 4).t()
    compiled = compile_call(call, x)
    compiled(x)
    torch.manual_seed(0)
    found = compiled(x)
    torch.manual_seed(0)
    torch.testing.assert_close(found, call(x))


def test_random_numbers_that_nothing_reads_are_still_drawn() -> None:
    """The next ones would be others."""
    x = torch.randn(4, 5)
    with pytest.raises(UnsupportedError, match="random numbers that nothing reads"):
        compile_call(lambda x: (torch.rand(3) * 2, torch.tanh(x) * 2)[1], x)(x)
    filled = compile_call(lambda x: torch.empty(4, 5).uniform_() * x + torch.tanh(x), x)
    filled(x)


def test_memory_is_read_as_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that do not lie in rows give the same numbers, to operators outside of regions, too."""
    made = keep_regions(monkeypatch)

    def call(x: torch.Tensor, bits: torch.Tensor) -> list[torch.Tensor]:
        y = (x + 1) * 2
        flat, values = torch.sort(x.reshape(-1))[0], torch.sort(y)[0].reshape(-1)
        beyond = y.t()[1:].as_strided((2, 3), (6, 1), 0) * 1, y.t().split(1)[1].as_strided((2, 3), (1, 2), 1) + 1
        negated = torch._neg_view(torch.sort(y)[0]) * 2
        return [flat.tanh() * 2, values.tanh() + 1, *beyond, (bits * 1 + 1).view(torch.int32) & 0xFFFF, negated]

    for x in (torch.randn(6, 4).t(), torch.randn(1, 6).expand(4, 6)):
        bits = torch.randn(3)
        found, wanted = compile_call(call, x, bits)(x, bits), call(x, bits)
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            torch.testing.assert_close(one, other, msg=lambda text, place=place: f"output {place}: {text}")
        assert made
        made.clear()
        torch.compiler.reset()


def test_outputs_lie_in_memory_as_in_eager() -> None:
    def call(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x + 1)[:, ::2], (x * 2).t()[::2], (x.tanh() * 3).split(2, 1)[1], x.sum(0), (x * 5).t().exp()]

    x = torch.randn(4, 6)
    for found, wanted in zip(compile_call(call, x)(x), call(x), strict=True):
        torch.testing.assert_close(found, wanted, check_stride=True)


def test_views_with_gaps_between_regions_need_no_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs of a region have no gaps, and the operators and the regions after it expect that."""
    make, left = programs.make_region, list[int]()

    def make_counted(library: Any, number: int, region: Any, original: Callable[..., Any]) -> Any:
        def call(*given: Any) -> Any:
            left.append(number)
            return original(*given)

        return make(library, number, region, torch.compiler.disable(call))

    monkeypatch.setattr(programs, "make_region", make_counted)

    def call(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        y = (x.tanh() * 2)[:, ::2]
        values, places = torch.sort(y * w[0, 0] + y.flip(1), 0)
        z = y.clone()
        z[1:, 1], z[0] = x[0, 0].double(), values[1]
        return [torch.cummax(y, 0)[0] * y + 1, values + y * 2 + places, torch.fmod(y, w[:, ::2]) * 2 + y, z * 2]

    x, w = torch.randn(4, 6), torch.randn(4, 6)
    torch.testing.assert_close(compile_call(call, x, w)(x, w), call(x, w))
    assert not left


def test_writes_to_parts_are_in_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    made = keep_regions(monkeypatch)

    def call(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh() + 1
        y[:, 1:3], y[2], y[1], y[3, 1] = x[:, :2] * 3, 7.0, x[0].double(), x[0, 0].long()
        return y * 2

    x = torch.randn(4, 6)
    torch.testing.assert_close(compile_call(call, x)(x), call(x))
    assert len(made) == 1


def test_a_region_that_is_given_other_layouts_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = keep_regions(monkeypatch)
    compile_call(lambda x: torch.sort(x.reshape(-1) * 2 + 1)[0], torch.randn(4, 6))(torch.randn(4, 6))
    x = torch.randn(6, 4).t()  # whose memory cannot be viewed as one row
    torch.testing.assert_close(made[0](x)[0], x.reshape(-1) * 2 + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_stay_whole(dtype: torch.dtype) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        y = F.rrelu(x * 2, training=True) + torch.bernoulli(x.sigmoid())
        return F.dropout(y.tanh() * 2) + F.scaled_dot_product_attention(x, x, x * 2)

    x = torch.randn(2, 30, 40, dtype=dtype)
    compiled = compile_call(call, x)
    compiled(x)
    torch.manual_seed(0)
    found = compiled(x)
    torch.manual_seed(0)
    torch.testing.assert_close(found, call(x))


def test_draws_into_a_tensor_that_is_not_contiguous_are_refused() -> None:
    x = torch.randn(40, 30).t()
    with pytest.raises(UnsupportedError, match="drawn into a tensor that is not contiguous"):
        compile_call(lambda x: F.alpha_dropout(x.tanh() * 2, 0.5, training=True) + x, x)(x)
