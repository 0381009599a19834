"""Family `ivhl`: complex fields radiated by point sources, their intensity, and fields wound around vortices.

Units are metres, seconds and radians. Amplitudes are relative. The formulas are those of the superposition of spherical
waves, as in any text on wave optics (for instance Goodman, *Introduction to Fourier Optics*, chapter 3). A softened 1/r
keeps the field finite at a source. A vortex and the profile of its core are those of Pethick and Smith, *Bose-Einstein
Condensation in Dilute Gases*, chapter 9.
"""

from __future__ import annotations

import functools
import math

import torch

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.ivhl.complexes import complex_dtype

WAVE_NUMBER = 12.5
"""k in rad/m: a wavelength of about 0.5 m. It is exact in every binary float, so that no dtype rounds it."""

SOFTENING = 0.1
"""Metres added to each distance, which keep the field finite at a source."""

HEALING_LENGTH = 0.125
"""ξ in metres: how far the core of a vortex reaches. It, too, is exact in every binary float."""


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


def compute_intensity(field: torch.Tensor) -> torch.Tensor:
    """Return |ψ|² of any field ψ, such as that of `field_superposition` or `vortex_field`: real, of the same shape."""
    return field.abs().square()


def intensity(
    positions: torch.Tensor,
    sources: torch.Tensor,
    amplitudes: torch.Tensor,
    frequencies: torch.Tensor,
    phases: torch.Tensor,
    k: float,
    t: torch.Tensor,
) -> torch.Tensor:
    """Return |ψ|² of the field that `field_superposition` returns, from the same arguments.

    It is the whole chain from the sources on. The square alone is `compute_intensity`. Real numbers go in and come out.
    So a compiler that fuses the complex arithmetic between them writes no complex number at all.

    Returns:
        |ψ|², (G,), real, of the dtype of `positions`.
    """
    return compute_intensity(field_superposition(positions, sources, amplitudes, frequencies, phases, k, t))


def vortex_field(
    positions: torch.Tensor, centres: torch.Tensor, charges: torch.Tensor, healing_length: float
) -> torch.Tensor:
    """Return the order parameter of a plane with vortices, of modulus 1 far from them all.

    ψ(r) = Π_j f(|r − r_j| / ξ) · exp(i q_j · atan2(y − y_j, x − x_j)), with f(s) = s / √(2 + s²)

    Args:
        positions: grid points r, (G, 2), metres. On a centre the gradient is not finite.
        centres: of the vortices, r_j, (V, 2), metres.
        charges: q_j, (V,), whole numbers: how often the phase winds around the centre, counter-clockwise.
        healing_length: ξ, metres, above 0.

    Returns:
        ψ, (G,), complex64 for float32 and complex128 for float64.
    """
    offset = positions[:, None, :] - centres[None, :, :]
    distance = torch.linalg.vector_norm(offset, dim=-1) / healing_length
    core = distance / torch.sqrt(2 + distance.square())
    angle = torch.atan2(offset[..., 1], offset[..., 0])
    vortices: torch.Tensor = core * torch.exp(1j * charges * angle)
    return vortices.prod(dim=-1)


def build_field_superposition(request: Request, *, grid: int, sources: int) -> Workload:
    """Build it: grid points in the cube [−1, 1]³, sources on the unit sphere, 1 to 10 rad/s.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    complex_dtype(request)
    examples = functools.partial(_field_examples, request, grid, sources)
    # Written: real and imaginary parts.
    roofline = _field_roofline(request, grid, sources, written=2, extra=0.0)
    return Workload(field_superposition, examples(request.seed), name=request.name, roofline=roofline, reseed=examples)


def build_intensity(request: Request, *, grid: int, sources: int) -> Workload:
    """Build it on the inputs of `build_field_superposition`.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    complex_dtype(request)
    examples = functools.partial(_field_examples, request, grid, sources)
    # Per point: two squares and a sum.
    roofline = _field_roofline(request, grid, sources, written=1, extra=3.0)
    return Workload(intensity, examples(request.seed), name=request.name, roofline=roofline, reseed=examples)


def build_vortex_field(request: Request, *, grid: int, vortices: int) -> Workload:
    """Build it: grid points in the square [−1, 1]², vortices within [−0.8, 0.8]², of charge +1 or −1.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    complex_dtype(request)
    examples = functools.partial(_vortex_examples, request, grid, vortices)
    return Workload(
        vortex_field,
        examples(request.seed),
        name=request.name,
        # Per pair: offset 2, distance 4 and in units of ξ 1, core 4, angle 1, times the charge 1, cosine and sine 2,
        # times the core 2, complex product 6. Read: positions, centres, charges; written: real and imaginary parts.
        roofline=Roofline(
            flops=23.0 * grid * vortices,
            bytes=float(request.dtype.itemsize * (2 * grid + 3 * vortices + 2 * grid)),
        ),
        reseed=examples,
    )


def _field_roofline(request: Request, grid: int, sources: int, *, written: int, extra: float) -> Roofline:
    """Count the work of a superposition that writes `written` numbers a point, after `extra` operations on each.

    Per pair: distance 9, phase 2, softening and division 2, cosine and sine 2, two products and two sums 4.
    Per source: ω t + φ. Read: positions, sources and t.
    """
    return Roofline(
        flops=(19.0 * sources + extra) * grid + 2.0 * sources,
        bytes=float(request.dtype.itemsize * (3 * grid + 6 * sources + 1 + written * grid)),
    )


def _field_examples(request: Request, grid: int, sources: int, seed: int) -> tuple[Example, ...]:
    draws = request.draws(seed)
    args = (
        draws.uniform(grid, 3, low=-1.0, high=1.0),
        draws.sphere_points(sources),
        draws.uniform(sources, low=0.5, high=1.5),
        draws.uniform(sources, low=1.0, high=10.0),
        draws.uniform(sources, high=2 * math.pi),
        WAVE_NUMBER,
        draws.uniform(low=0.1, high=1.0),
    )
    return (Example(args),)


def _vortex_examples(request: Request, grid: int, vortices: int, seed: int) -> tuple[Example, ...]:
    draws = request.draws(seed)
    charges = draws.normal(vortices).sign()
    positions = draws.uniform(grid, 2, low=-1.0, high=1.0)
    centres = draws.uniform(vortices, 2, low=-0.8, high=0.8)
    return (Example((positions, centres, charges, HEALING_LENGTH)),)
