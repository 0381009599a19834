"""True candidates: other algorithms and other orders of the same operator. None of them may be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Call = Callable[..., Any]
ROWS = "x: float32[n, m] n=0..40 m=1..200"
SQUARE = "a: float64[n, n] n=1..20 positive-definite"
PAIR = ("x: float32[n, k] n=1..40 k=1..160", "y: float32[k, m] m=1..40")


@dataclass(frozen=True)
class Family:
    """One operator, other ways to compute it, and its inputs."""

    name: str
    reference: Call
    others: tuple[Call, ...]
    inputs: tuple[str, ...] = (ROWS,)
    training: bool = False
    precision: str = "native"


def shift_softmax(x: Tensor) -> Tensor:
    """Compute a softmax by its definition."""
    e = (x - x.amax(dim=-1, keepdim=True)).exp()
    return e / e.sum(dim=-1, keepdim=True)


def online_softmax(x: Tensor) -> Tensor:
    """Compute a softmax block by block, as flash attention does."""
    top = torch.full_like(x[:, :1], -torch.inf)
    total = torch.zeros_like(top)
    for part in x.split(16, dim=-1):
        new = torch.maximum(top, part.amax(dim=-1, keepdim=True))
        total = total * (top - new).exp() + (part - new).exp().sum(dim=-1, keepdim=True)
        top = new
    return (x - top).exp() / total


def sum_pairs(x: Tensor) -> Tensor:
    """Sum in a tree."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        rest = x[..., 2 * half :]
        x = torch.cat([x[..., :half] + x[..., half : 2 * half], rest], dim=-1)
    return x[..., 0].clone()


def split_k(x: Tensor, y: Tensor) -> Tensor:
    """Multiply in blocks of the inner dimension."""
    parts = zip(x.split(32, dim=1), y.split(32, dim=0), strict=True)
    return sum((a @ b for a, b in parts), torch.zeros(x.shape[0], y.shape[1]))


def welford(x: Tensor) -> Tensor:
    """Compute a variance in two passes, from the last value on."""
    middle = x.flip(-1).mean(dim=-1, keepdim=True)
    return (x.flip(-1) - middle).square().mean(dim=-1)


def rms_norm(x: Tensor) -> Tensor:
    """Normalise rows by their root mean square."""
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()


def layer_norm(x: Tensor) -> Tensor:
    """Normalise rows."""
    return functional.layer_norm(x, x.shape[-1:])


def own_layer_norm(x: Tensor) -> Tensor:
    """Normalise rows by the definition."""
    off = x - x.mean(dim=-1, keepdim=True)
    return off * (off.square().mean(dim=-1, keepdim=True) + 1e-5).rsqrt()


FAMILIES = (
    Family("softmax", lambda x: x.softmax(-1), (shift_softmax, online_softmax, lambda x: x.log_softmax(-1).exp())),
    Family(
        "sum", lambda x: x.sum(-1), (sum_pairs, lambda x: x.flip(-1).sum(-1), lambda x: x @ torch.ones(x.shape[-1]))
    ),
    Family(
        "complex product",
        torch.mul,
        (lambda x, y: torch.complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real),),
        ("x: complex64[n, 4] n=0..9", "y: complex64[n, 4]"),
    ),
    Family("matmul", torch.matmul, (split_k, lambda x, y: torch.einsum("nk,km->nm", x, y)), PAIR),
    Family(
        "variance", lambda x: x.var(-1, unbiased=False), (welford,), ("x: float32[n, m] n=1..40 m=1..200 in -2..2",)
    ),
    Family(
        "rms norm",
        rms_norm,
        (lambda x: x * (x.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-5).rsqrt(),),
        training=True,
    ),
    Family("layer norm", layer_norm, (own_layer_norm,), ("x: float32[n, m] n=1..40 m=2..200 in -3..3",), training=True),
    Family("gelu", functional.gelu, (lambda x: x * 0.5 * (1 + torch.erf(x * 0.7071067811865476)),), training=True),
    Family("sigmoid", torch.sigmoid, (lambda x: 0.5 * (1 + torch.tanh(0.5 * x)), lambda x: 1 / (1 + (-x).exp()))),
    Family("silu", functional.silu, (lambda x: x * x.sigmoid(),), ("x: float32[n, m] n=0..40 m=1..99 in -20..20",)),
    Family("inverse", torch.linalg.inv, (lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)),), (SQUARE,)),
    Family(
        "solve",
        torch.linalg.solve,
        (lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)),),
        (SQUARE, "b: float64[n, 3]"),
    ),
    Family(
        "cumsum",
        lambda x: x.cumsum(-1),
        (lambda x: torch.stack([x[..., : i + 1].sum(-1) for i in range(x.shape[-1])], -1),),
        ("x: float32[n, m] n=1..9 m=1..60",),
    ),
    Family("argmax", lambda x: x.argmax(-1), (lambda x: x.max(dim=-1).indices,)),
    Family(
        "sort",
        lambda x: x.sort(dim=-1).values,
        (lambda x: -(-x).sort(dim=-1, descending=True).values,),
        ("x: int64[n, m] n=0..9 m=1..60",),
    ),
    Family("bf16 product", torch.matmul, (lambda x, y: (x.bfloat16() @ y.bfloat16()).float(),), PAIR, precision="bf16"),
    Family(
        "bf16 softmax",
        lambda x: x.softmax(-1),
        (lambda x: x.bfloat16().softmax(-1).float(),),
        ("x: float32[n, m] n=1..40 m=1..99 in -3..3",),
        precision="bf16",
    ),
    Family(
        "plain number",
        lambda x: {"sum": x.sum().item(), "count": int((x > 0).sum())},
        (
            lambda x: {"sum": sum_pairs(x.flatten()).item() if x.numel() else 0.0, "count": int((x > 0).sum())},
            lambda x: {"sum": x.double().sum().float().item(), "count": sum((x > 0).flatten().tolist())},
        ),
        ("x: float32[n, m] n=0..9 m=1..60",),
    ),
    Family(
        "plain number in float64",
        lambda x: (x.double().mean().item(), complex(x.double().std().item(), 1.0)),
        (lambda x: (x.double().flip(0).mean(1).mean(0).item(), complex(x.double().var().item() ** 0.5, 1.0)),),
        ("x: float32[n, m] n=2..9 m=2..60",),
    ),
    Family(
        "dropout",
        lambda x: functional.dropout(x, 0.25),
        (lambda x: x * torch.bernoulli(torch.full_like(x, 0.75)) / 0.75,),
        ("x: float32[20, 40] in 0.5..1.5",),
    ),
)
