"""Complex numbers for family `ivhl`: of which dtype they are, and how they are drawn."""

from __future__ import annotations

import math

import torch

from torchwise.errors import WorkloadError
from torchwise.zoo.random_inputs import Draws, Request

COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def complex_dtype(request: Request) -> torch.dtype:
    """Return the complex dtype whose real and imaginary parts have the dtype asked for.

    Raises:
        WorkloadError: it is neither float32 nor float64.
    """
    if request.dtype not in COMPLEX:
        raise WorkloadError(
            f"dtype is {request.dtype}, but {request.name} must be torch.float32 or torch.float64: "
            "there is no complex type of that precision on every device"
        )
    return COMPLEX[request.dtype]


def complex_normal(draws: Draws, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """Draw complex numbers z with ⟨z⟩ = 0, ⟨z²⟩ = 0 and ⟨|z|²⟩ = scale²."""
    part = scale / math.sqrt(2)
    return torch.complex(draws.normal(*shape, scale=part), draws.normal(*shape, scale=part))


def exact_draws(seed: int) -> Draws:
    """Start a sequence in float64 on the CPU, for numbers that must be rounded once, after they are computed with."""
    return Draws(seed, "cpu", torch.float64)
