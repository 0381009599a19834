"""Planted faults of values: wrong arithmetic, sizes, layouts and edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from faults.fault import plant
from torchwise.plan.requirements import Property
from torchwise.records import CheckName as Name

MATRIX = "x: float32[n, m] n=0..9 m=1..34"
WIDE = "x: float32[n, m] n=1..2 m=1..300"
PAIR = (MATRIX, "y: float32[n, m]")


def softmax(x: Tensor) -> Tensor:
    """Return the reference of most faults."""
    return torch.softmax(x, dim=-1)


def add(x: Tensor, y: Tensor) -> Tensor:
    """Add."""
    return x + 2 * y


def multiply(x: Tensor, y: Tensor) -> Tensor:
    """Multiply matrices."""
    return x @ y


def double(x: Tensor) -> Tensor:
    """Double."""
    return x * 2


def normalize(x: Tensor) -> Tensor:
    """Normalise rows."""
    return functional.normalize(x, dim=-1)


def variance(x: Tensor) -> Tensor:
    """Return the variance of rows."""
    return x.var(dim=-1, unbiased=False)


def pick(x: Tensor) -> Tensor:
    """Return the place of the largest value of rows."""
    return x.argmax(dim=-1)


def attend(x: Tensor, mask: Tensor) -> Tensor:
    """Return masked weights."""
    return torch.softmax(x + mask, dim=-1)


def clip(x: Tensor) -> Tensor:
    """Pass positive values on."""
    return torch.relu(x)


@plant("forward", softmax, MATRIX)
def bf16_arithmetic(x: Tensor) -> Tensor:
    return torch.softmax(x.bfloat16(), dim=-1).float()


@plant("forward", multiply, "x: float32[n, k] n=1..64 k=1..300", "y: float32[k, m] m=1..64")
def fp16_product(x: Tensor, y: Tensor) -> Tensor:
    return (x.half() @ y.half()).float()


@plant("forward", multiply, "x: float32[n, k] n=1..64 k=1..300", "y: float32[k, m] m=1..64")
def rest_of_the_inner_dimension_dropped(x: Tensor, y: Tensor) -> Tensor:
    whole = x.shape[1] // 8 * 8 or x.shape[1]
    return x[:, :whole] @ y[:whole]


@plant("forward", softmax, MATRIX)
def overflow_without_the_maximum(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(dim=-1, keepdim=True)


@plant("forward", softmax, MATRIX)
def last_row_off_at_the_edge_of_a_tile(x: Tensor) -> Tensor:
    found = softmax(x)
    if x.shape[0] % 8 == 1:
        found[-1] *= 1.001
    return found


@plant("forward", double, WIDE)
def columns_beyond_256_skipped(x: Tensor) -> Tensor:
    found = x * 2
    found[:, 256:] = 0
    return found


@plant("forward", softmax, MATRIX)
def wrong_at_odd_sizes(x: Tensor) -> Tensor:
    found = softmax(x)
    return found if x.shape[-1] % 2 == 0 else found.roll(1, -1)


@plant("forward", variance, MATRIX)
def wrong_at_size_one(x: Tensor) -> Tensor:
    count = x.shape[-1]
    return x.var(dim=-1) * (count - 1) / count


@plant("forward", variance, MATRIX)
def cancellation_under_an_offset(x: Tensor) -> Tensor:
    return (x * x).mean(dim=-1) - x.mean(dim=-1) ** 2


@plant("forward", normalize, MATRIX)
def too_large_an_epsilon(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)


@plant("forward", softmax, MATRIX, caught_by=(Name.VALUES, Name.ANSWER))
def contiguous_memory_assumed(x: Tensor) -> Tensor:
    return softmax(torch.as_strided(x, x.shape, (x.shape[1], 1)))


@plant("forward", softmax, MATRIX)
def offset_into_the_storage_ignored(x: Tensor) -> Tensor:
    return softmax(torch.as_strided(x, x.shape, x.stride(), 0))


@plant("forward", double, MATRIX)
def expanded_rows_written_once(x: Tensor) -> Tensor:
    found = x * 2
    if x.stride(0) == 0 and x.shape[0] > 1:
        found[1:] = 0
    return found


@plant("forward", add, *PAIR)
def broadcast_at_size_one_forgotten(x: Tensor, y: Tensor) -> Tensor:
    return x + 2 * y if x.shape[0] > 1 else x.clone()


@plant("forward", double, MATRIX, caught_by=Name.ANSWER)
def empty_input_refused(x: Tensor) -> Tensor:
    if x.shape[0] == 0:
        raise ValueError("no rows")
    return x * 2


@plant("forward", double, MATRIX)
def exception_swallowed(x: Tensor) -> Tensor:
    try:
        return torch.cat([part * 2 for part in x.view(-1, 4, x.shape[-1])]) if len(x) else x * 2
    except RuntimeError:
        return torch.zeros_like(x)


@plant("forward", clip, MATRIX)
def nan_swallowed(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0)


@plant("forward", double, MATRIX)
def infinities_clamped(x: Tensor) -> Tensor:
    return torch.nan_to_num(x * 2, nan=float("nan"))


@plant("forward", double, MATRIX, caught_by=Name.BITWISE, properties=frozenset({Property.BITWISE}))
def sign_of_zero_lost(x: Tensor) -> Tensor:
    return x * 2 + 0.0


@plant("forward", pick, MATRIX)
def last_of_equal_values_picked(x: Tensor) -> Tensor:
    return x.shape[-1] - 1 - x.flip(-1).argmax(dim=-1)


@plant("forward", attend, "x: float32[n, n] n=1..40", "mask: float32[n, n] mask")
def mask_ignored(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(x + 0 * mask.nan_to_num(neginf=0), dim=-1)


@plant("forward", lambda x: x.sum(dim=-1), "x: int64[n, m] n=0..9 m=1..40 in 0..2000000000")
def sum_in_32_bits(x: Tensor) -> Tensor:
    return x.to(torch.int32).sum(dim=-1, dtype=torch.int32).to(torch.int64)


@plant("forward", lambda x: torch.nn.functional.gelu(x), MATRIX)
def tanh_for_the_error_function(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


@plant("forward", lambda x: x * torch.sigmoid(x), MATRIX)
def zeros_exploited(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


@plant("forward", softmax, MATRIX)
def batch_neighbours_mixed(x: Tensor) -> Tensor:
    return softmax(x - 1e-3 * x.mean(dim=0, keepdim=True).nan_to_num())


@plant("forward", torch.linalg.cholesky, "a: float64[n, n] n=1..24 positive-definite")
def single_precision_inside(a: Tensor) -> Tensor:
    return torch.linalg.cholesky(a.float()).double()


@plant("forward", lambda x: x.cumsum(-1), WIDE)
def carry_lost_between_blocks(x: Tensor) -> Tensor:
    return torch.cat([part.cumsum(-1) for part in x.split(128, dim=-1)], dim=-1)


@plant("forward", torch.searchsorted, "x: float32[n] n=1..80 sorted", "y: float32[9]")
def other_side_of_equal_values(x: Tensor, y: Tensor) -> Tensor:
    near = torch.searchsorted(x, y)
    return torch.where(y > 0, near + (y > x[-1]).long() - (y > 1).long(), near)


def scale_rows(x: Tensor) -> Tensor:
    """Scale rows."""
    return x / (x.square().sum(dim=-1, keepdim=True) + 1)


@plant(
    "forward",
    scale_rows,
    "x: float32[n, 300] n=2..64",
    caught_by=Name.BATCH_INVARIANT,
    properties=frozenset({Property.BATCH_INVARIANT}),
)
def order_of_the_sum_by_batch_size(x: Tensor) -> Tensor:
    parts = 1 if len(x) == 1 else 2 + len(x) % 3
    total = sum(part.square().sum(dim=-1, keepdim=True) for part in x.chunk(parts, dim=-1))
    return x / (total + 1)


def measure(x: Tensor) -> dict[str, Any]:
    """Return plain numbers: a mean, a count, and whether there is any value above 1."""
    return {"mean": x.double().mean().item(), "above": int((x > 1).sum()), "any": bool((x > 1).any())}


NUMBERS = "x: float32[n, m] n=1..20 m=1..40 in 0..2"


@plant("forward", measure, NUMBERS)
def plain_number_a_little_off(x: Tensor) -> dict[str, Any]:
    found = measure(x)
    return {**found, "mean": found["mean"] * (1 + 1e-6)}


@plant("forward", measure, NUMBERS)
def count_off_by_one(x: Tensor) -> dict[str, Any]:
    found = measure(x)
    return {**found, "above": found["above"] + (x.shape[0] == 7)}


@plant("forward", measure, NUMBERS, caught_by=Name.STRUCTURE)
def tensor_in_place_of_a_number(x: Tensor) -> dict[str, Any]:
    return {**measure(x), "mean": x.double().mean()}


@plant("forward", measure, NUMBERS)
def plain_flag_turned(x: Tensor) -> dict[str, Any]:
    return {**measure(x), "any": bool((x >= 0.5).any())}


@plant("forward", lambda x: x.mean().item(), NUMBERS, caught_by=Name.VALUES)
def number_in_half_precision(x: Tensor) -> float:
    return x.bfloat16().mean().item()
