"""Family `ivhl`: complex fields radiated by point sources.

Units are metres, seconds and radians; amplitudes are relative. The source of the formulas is the superposition of
spherical waves, as in any text on wave optics (for instance Goodman, *Introduction to Fourier Optics*, chapter 3),
with a softened 1/r so that the field stays finite at a source.
"""

from __future__ import annotations

import functools
import math

import torch

from torchwise.errors import WorkloadError
from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.draws import Request

WAVE_NUMBER = 12.5
"""k in rad/m: a wavelength of about 0.5 m. It is exact in every binary float, so that no dtype rounds it."""

SOFTENING = 0.1
"""Metres added to each distance, which keep the field finite where a source lies."""


def field_superposition(
    positions: torch.Tensor,
    sources: torch.Tensor,
    amplitudes: torch.Tensor,
    frequencies: torch.Tensor,
    phases: torch.Tensor,
    k: float,
    t: torch.Tensor,
) -> torch.Tensor:
    """Return the complex field that point sources radiate to every point of a grid.

    ψ(r) = Σ_j A_j · exp(i (k·|r − r_j| + ω_j t + φ_j)) / (|r − r_j| + 0.1)

    Args:
        positions: grid points r, (G, 3), metres.
        sources: source points r_j, (S, 3), metres.
        amplitudes: A_j, (S,).
        frequencies: ω_j, (S,), rad/s.
        phases: φ_j, (S,), rad.
        k: wave number, rad/m.
        t: time, a scalar tensor, seconds.

    Returns:
        ψ, (G,), complex64 for float32 and complex128 for float64.
    """
    distance = torch.linalg.vector_norm(positions[:, None, :] - sources[None, :, :], dim=-1)
    phase = k * distance + frequencies * t + phases
    waves: torch.Tensor = amplitudes * torch.exp(1j * phase) / (distance + SOFTENING)
    return waves.sum(dim=-1)


def build_field_superposition(request: Request, *, grid: int, sources: int) -> Workload:
    """Build it: grid points in the cube [−1, 1]³, sources on the unit sphere, 1 to 10 rad/s."""
    if request.dtype not in (torch.float32, torch.float64):
        raise WorkloadError(
            f"dtype is {request.dtype}, but {request.name} must be torch.float32 or torch.float64: "
            "there is no complex type of that precision on every device"
        )
    examples = functools.partial(_field_examples, request, grid, sources)
    itemsize = request.dtype.itemsize
    return Workload(
        field_superposition,
        examples(request.seed),
        name=request.name,
        # Per pair: distance 9, phase 2, softening and division 2, cosine and sine 2, two products and two sums 4.
        # Per source: ω t + φ. Read: positions, sources and t; written: real and imaginary parts.
        roofline=Roofline(
            flops=19.0 * grid * sources + 2.0 * sources,
            bytes=float(itemsize * (3 * grid + 6 * sources + 1 + 2 * grid)),
        ),
        reseed=examples,
    )


def _field_examples(request: Request, grid: int, sources: int, seed: int) -> tuple[Example, ...]:
    draws = request.draws(seed)
    args = (
        draws.uniform(grid, 3, low=-1.0, high=1.0),
        draws.on_sphere(sources),
        draws.uniform(sources, low=0.5, high=1.5),
        draws.uniform(sources, low=1.0, high=10.0),
        draws.uniform(sources, high=2 * math.pi),
        WAVE_NUMBER,
        draws.uniform(low=0.1, high=1.0),
    )
    return (Example(args),)
