"""Logarithms of softmaxes, and distances of all pairs of points, as other functions: where, with which answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dynamo_graphs import rewrite_and_call
from torchwise.compile.transforms.function_graphs import fft_sizes, log_softmax, pair_distances
from torchwise.compile.transforms.function_graphs.record import record
from torchwise.plan import Numerics, PlanSpace, Trait

POINTS, OTHERS = (torch.randn(size, 16, generator=torch.Generator().manual_seed(size)) for size in (5, 7))


LOGS: dict[str, Callable[[Tensor], Tensor]] = {
    "method": lambda x: x.softmax(-1).log(),
    "function": lambda x: torch.log(torch.softmax(x, dim=0)),
    "functional": lambda x: functional.softmax(x, -1).log() * 2,
    "module": lambda x: torch.log(torch.nn.Softmax(dim=1)(x)),
    "dtype": lambda x: torch.log(functional.softmax(x, dim=-1, dtype=torch.float64)),
    "dtype of the method": lambda x: x.softmax(1, torch.float64).log(),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_logarithm_of_a_softmax_is_one_function_with_the_same_answer(name: str) -> None:
    answer, places, names = rewrite_and_call(LOGS[name], POINTS, rewrite=log_softmax.rewrite)
    assert places == 1
    assert "log_softmax" in names
    assert not {"softmax", "log"} & set(names)
    torch.testing.assert_close(answer, LOGS[name](POINTS))
    assert log_softmax.rewrite(record(lambda: LOGS[name](POINTS))) == 1, "the trait is found in eager"


def read_shares(x: Tensor) -> tuple[Tensor, Tensor]:
    shares = x.softmax(-1)
    return shares.log(), shares


def write_between(x: Tensor) -> Tensor:
    shares = x.softmax(-1)
    x.mul_(2)
    return shares.log() + x


def take_shares_without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        shares = x.softmax(-1)
    return shares.log()


OTHER_LOGS: list[Callable[[Tensor], Any]] = [
    read_shares,
    write_between,
    take_shares_without_gradients,
    lambda x: x.exp().log(),
    lambda x: x.softmax(-1).log2(),
    lambda x: (x.softmax(-1) + 1e-6).log(),
    lambda x: x.softmax(-1).log_(),
    lambda x: x.sigmoid().log(),
]


@pytest.mark.parametrize("call", OTHER_LOGS)
def test_other_logarithms_stay(call: Callable[[Tensor], Any]) -> None:
    answer, places, _ = rewrite_and_call(call, POINTS.clone(), rewrite=log_softmax.rewrite)
    assert places == 0
    torch.testing.assert_close(answer, call(POINTS.clone()))


def test_shares_that_underflow_have_the_logarithms_of_float64() -> None:
    x = torch.tensor([[0.0, -200.0]])
    answer, _, _ = rewrite_and_call(LOGS["method"], x, rewrite=log_softmax.rewrite)
    assert LOGS["method"](x)[0, 1] == -torch.inf
    torch.testing.assert_close(answer.double(), LOGS["method"](x.double()))


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "square": lambda x, y: (x[:, None] - y[None]).square().sum(-1),
    "power": lambda x, y: ((x.unsqueeze(1) - y.unsqueeze(0)) ** 2).sum(dim=2),
    "pow": lambda x, y: torch.sum(torch.pow(x[:, None, :] - y[None, :, :], 2), dim=-1),
    "keepdim": lambda x, y: (x[:, None] - y[None]).pow(2).sum(-1, keepdim=True),
    "root": lambda x, y: (x[:, None] - y[None]).square().sum(-1).sqrt(),
    "norm": lambda x, y: (x[:, None] - y[None]).norm(dim=-1),
    "torch.norm": lambda x, y: torch.norm(x[:, None] - y[None], dim=-1, keepdim=True),
    "vector_norm": lambda x, y: torch.linalg.vector_norm(x[:, None] - y[None], dim=-1),
    "linalg.norm": lambda x, y: torch.linalg.norm(x[:, None] - y[None], dim=2),
    "kernel": lambda x, y: torch.exp(-(x[:, None] - y[None]).square().sum(-1) / 2) @ y,
    "batches": lambda x, y: (x.expand(3, 5, 16)[:, :, None] - y.expand(3, 7, 16)[:, None]).square().sum(-1),
    "one batch": lambda x, y: (x.expand(3, 5, 16)[:, :, None] - y[None, None]).square().sum(-1),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_of_all_pairs_are_a_product(name: str) -> None:
    call = DISTANCES[name]
    answer, places, names = rewrite_and_call(call, POINTS, OTHERS, rewrite=pair_distances.rewrite)
    assert places == 1
    assert "matmul" in names
    assert not {"norm", "vector_norm", "linalg_vector_norm", "linalg_norm", "pow"} & set(names), "nothing is left"
    torch.testing.assert_close(answer, call(POINTS, OTHERS), rtol=1e-4, atol=1e-4)
    assert pair_distances.rewrite(record(lambda: call(POINTS, OTHERS))) == 1, "the trait is found in eager"


def test_a_distance_of_nothing_is_no_nan() -> None:
    x = 1e3 + POINTS
    answer, places, _ = rewrite_and_call(DISTANCES["norm"], x, x, rewrite=pair_distances.rewrite)
    assert places == 1
    assert not answer.isnan().any()


def read_differences(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    differences = x[:, None] - y[None]
    return differences.square().sum(-1), differences


def write_points(x: Tensor, y: Tensor) -> Tensor:
    differences = x[:, None] - y[None]
    x.add_(1)
    return differences.square().sum(-1)


def measure_under_autocast(x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x[:, None] - y[None]).square().sum(-1)


def subtract_itself(x: Tensor, y: Tensor) -> Tensor:
    rows = x[:, None]
    return (rows - rows).square().sum(-1)


OTHER_DISTANCES: list[Callable[[Tensor, Tensor], Any]] = [
    read_differences,
    write_points,
    measure_under_autocast,
    subtract_itself,
    lambda x, y: (x[:, None] - y[None]).square().sum(-1, keepdims=True),
    lambda x, y: (x[:, None] - y[None]).norm(2, -1, False, torch.float64),
    lambda x, y: (300 + x[:, None].half() - y[None].half()).square().sum(-1),
    lambda x, y: ((300 + x).half()[:, None] - (300 + y).half()[None]).square().sum(-1),
    lambda x, y: (x[:, None] - y[None]).abs().sum(-1),
    lambda x, y: (x[:, None] - y[None]).square().sum(0),
    lambda x, y: (x[:, None] - y[None]).square().mean(-1),
    lambda x, y: (x[:, None] - y[None]).norm(p=1, dim=-1),
    lambda x, y: (x[:, None] + y[None]).square().sum(-1),
    lambda x, y: (x[:5] - y[:5]).square().sum(-1),
    lambda x, y: (x[:, None, :3] - y[None, :, :3]).square().sum(-1),
    lambda x, y: torch.sub(x[:, None], y[None], alpha=2).square().sum(-1),
    lambda x, y: (x[:, None] - y[None]).square().sum(-1, dtype=torch.float64),
    lambda x, y: (x[:1, None] - y[None]).square().sum(-1),
    lambda x, y: (x[:, None] - x[:, None]).square().sum(-1),
    lambda x, y: (x[:, None] - 1).square().sum(-1),
    lambda x, y: (x[:, None] - y[None].double()).square().sum(-1),
]


@pytest.mark.parametrize("call", OTHER_DISTANCES)
def test_other_sums_stay(call: Callable[[Tensor, Tensor], Any]) -> None:
    answer, places, _ = rewrite_and_call(call, POINTS.clone(), OTHERS, rewrite=pair_distances.rewrite)
    assert places == 0
    torch.testing.assert_close(answer, call(POINTS.clone(), OTHERS))


SIGNAL, FILTER = (torch.randn(3, size, generator=torch.Generator().manual_seed(size)) for size in (90, 12))
CONVOLUTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "real": lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 101) * torch.fft.rfft(y, 101), 101),
    "names": lambda x, y: torch.fft.irfft(torch.fft.rfft(x, n=103) * torch.fft.rfft(y, n=103), n=103)[..., :101] + 1,
    "complex": lambda x, y: torch.fft.ifft(torch.fft.fft(x, 107) * torch.fft.fft(y, 107)).real,
    "product by a function": lambda x, y: torch.fft.irfft(
        torch.mul(torch.fft.rfft(y, 113, dim=-1, norm="backward"), torch.fft.rfft(x, 113)), 113, dim=1
    ),
    "view": lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 101) * torch.fft.rfft(y, 101), 101).view(-1),
    "one filter for all": lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 109) * torch.fft.rfft(y[:1], 109), 109),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_padded_to_a_quick_length_with_the_same_answer(name: str) -> None:
    call = CONVOLUTIONS[name]
    answer, places, names = rewrite_and_call(call, SIGNAL, FILTER, rewrite=fft_sizes.rewrite)
    assert places == 1
    assert "narrow" in names
    torch.testing.assert_close(answer, call(SIGNAL, FILTER), rtol=1e-4, atol=1e-4)
    assert fft_sizes.rewrite(record(lambda: call(SIGNAL, FILTER))) == 1, "the trait is found in eager"


def read_spectrum(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    spectrum = torch.fft.rfft(x, 101)
    return torch.fft.irfft(spectrum * torch.fft.rfft(y, 101), 101), spectrum.abs()


OTHER_TRANSFORMS: list[Callable[[Tensor, Tensor], Any]] = [
    read_spectrum,
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 100) * torch.fft.rfft(y, 100), 100),
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 108) * torch.fft.rfft(y, 108), 108),
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 97) * torch.fft.rfft(y, 97), 97),
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 101) * torch.fft.rfft(y, 101).conj(), 101),
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 101) * torch.fft.rfft(y, 101), 102),
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 101, norm="ortho") * torch.fft.rfft(y, 101), 101),
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x.T, 101, dim=0).T * torch.fft.rfft(y, 101), 101),
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 101) * 2, 101),
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x, 101).square(), 101),
]


@pytest.mark.parametrize("call", OTHER_TRANSFORMS)
def test_other_transforms_stay(call: Callable[[Tensor, Tensor], Any]) -> None:
    answer, places, _ = rewrite_and_call(call, SIGNAL, FILTER, rewrite=fft_sizes.rewrite)
    assert places == 0
    torch.testing.assert_close(answer, call(SIGNAL, FILTER))


def test_quick_lengths_have_small_factors() -> None:
    assert [fft_sizes.find_quick_length(length) for length in (1, 11, 101, 108, 10007)] == [1, 12, 105, 108, 10080]


def test_products_need_lower_precision_to_be_allowed() -> None:
    traits = frozenset({Trait.MODULE, Trait.FLOATING, Trait.PAIR_DISTANCES, Trait.LOG_OF_SOFTMAX})
    for allow, is_open in ((Numerics.SAME_PRECISION, False), (Numerics.LOWER_PRECISION, True)):
        names = {choice.value for choice in PlanSpace("cpu", "inference", traits, allow).choices()}
        assert ("distance_products" in names) is is_open
        assert "log_softmax" in names
