"""Family `ivhl`: a condensate on a 3-D group manifold, the torus U(1)³, as a periodic lattice.

The equation is that of Gross and Pitaevskii (Pethick and Smith, *Bose-Einstein Condensation in Dilute Gases*, chapter
7). The field is that of group field theory (Gielen, Oriti and Sindoni, https://arxiv.org/abs/1303.3576). Units are
natural: ħ = mass = lattice spacing = 1. With m² < 0 the vacuum is a condensate: a constant field with |φ|² = −m²/λ
stands still.
"""

from __future__ import annotations

import functools
import math

import torch

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.ivhl.complexes import complex_dtype, complex_normal

MASS_SQUARED = -0.5
"""m²."""
COUPLING = 0.1
"""λ, of the self-interaction, which is repulsive."""
TIME_STEP = 0.01
"""dt."""

LAPLACIAN_FLOPS = 14
"""Per site: six neighbours added to −6 φ, each for the real and the imaginary part."""
STEP_FLOPS = LAPLACIAN_FLOPS + 15
"""Per site: |φ|² 3, m² + λ|φ|² 2, times −½ 2, times φ 2, their sum 2, times dt 2, difference 2."""


def laplacian(field: torch.Tensor) -> torch.Tensor:
    """Return Σ_a (φ(x + e_a) + φ(x − e_a) − 2 φ(x)) over the last three dimensions, which are periodic.

    The error against the continuum is of second order in the lattice spacing.
    """
    total = -6.0 * field
    for dim in (-3, -2, -1):
        total = total + torch.roll(field, 1, dim) + torch.roll(field, -1, dim)
    return total


def condensate_potential(
    field: torch.Tensor, mass_squared: float = MASS_SQUARED, coupling: float = COUPLING
) -> torch.Tensor:
    """Return the energy density of the condensate at every site.

    V(x) = Re(φ* · (−½ ∇²φ)) + m² |φ|² + λ |φ|⁴

    Args:
        field: φ, (G, G, G), complex, periodic.
        mass_squared: m².
        coupling: λ.

    Returns:
        V, (G, G, G), real. Its kinetic share sums to at least 0 over the lattice. (The sum that the equation below
        conserves is the one with λ/2 for λ.)
    """
    density = field.abs().square()
    kinetic: torch.Tensor = (field.conj() * (-0.5 * laplacian(field))).real
    return kinetic + mass_squared * density + coupling * density.square()


def gross_pitaevskii_step(
    field: torch.Tensor,
    mass_squared: float = MASS_SQUARED,
    coupling: float = COUPLING,
    time_step: float = TIME_STEP,
) -> torch.Tensor:
    """Move the condensate on by one explicit Euler step of i ∂φ/∂t = (−½ ∇² + m² + λ |φ|²) φ.

    φ ← φ − i dt (−½ ∇²φ + m² φ + λ |φ|² φ)

    One stage, so one stencil: the cheapest step there is. It multiplies a plane wave of frequency ω by exactly
    1 − i dt ω. So the norm Σ|φ|², which the equation conserves, grows by a factor 1 + O(dt²) in a step. Over a given
    time, norm and field are right to first order in dt.

    Args:
        field: φ, (G, G, G), complex, periodic.
        mass_squared: m².
        coupling: λ.
        time_step: dt.

    Returns:
        φ after the step, in new memory.
    """
    chemical = mass_squared + coupling * field.abs().square()
    return field - 1j * time_step * (-0.5 * laplacian(field) + chemical * field)


def gross_pitaevskii(field: torch.Tensor, steps: int) -> torch.Tensor:
    """Move the condensate on by `steps` such steps: a loop in Python, which a compiler unrolls or leaves alone."""
    for _ in range(steps):
        field = gross_pitaevskii_step(field)
    return field


def build_condensate_potential(request: Request, *, grid: int) -> Workload:
    """Build it on the field that `build_gross_pitaevskii_step` starts from.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    complex_dtype(request)
    examples = functools.partial(_examples, request, grid, ())
    return Workload(
        condensate_potential,
        examples(request.seed),
        name=request.name,
        # Per site: Laplacian, |φ|² 3, real part of the product 3, times −½ 1, potential 5. φ is read, V written.
        roofline=Roofline(
            flops=float(LAPLACIAN_FLOPS + 12) * grid**3, bytes=float(3 * request.dtype.itemsize * grid**3)
        ),
        reseed=examples,
    )


def build_gross_pitaevskii_step(request: Request, *, grid: int) -> Workload:
    """Build one step from near the vacuum: |φ| = √(−m²/λ) and one phase, with noise of 10 % on both.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    complex_dtype(request)
    examples = functools.partial(_examples, request, grid, ())
    roofline = _evolution_roofline(request, grid, 1)
    return Workload(
        gross_pitaevskii_step, examples(request.seed), name=request.name, roofline=roofline, reseed=examples
    )


def build_gross_pitaevskii(request: Request, *, grid: int, steps: int) -> Workload:
    """Build `steps` steps from the same field.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    complex_dtype(request)
    examples = functools.partial(_examples, request, grid, (steps,))
    roofline = _evolution_roofline(request, grid, steps)
    return Workload(gross_pitaevskii, examples(request.seed), name=request.name, roofline=roofline, reseed=examples)


def _evolution_roofline(request: Request, grid: int, steps: int) -> Roofline:
    """Count a read and a write of the field in every step, which ends as a site needs its neighbours' last values.

    (A field that stays in the last-level cache moves faster than main memory would let it.)
    """
    sites = steps * grid**3
    return Roofline(flops=float(STEP_FLOPS * sites), bytes=float(4 * request.dtype.itemsize * sites))


def _examples(request: Request, grid: int, more: tuple[int, ...], seed: int) -> tuple[Example, ...]:
    draws = request.draws(seed)
    size = math.sqrt(-MASS_SQUARED / COUPLING)
    phase = draws.uniform(high=2 * math.pi)
    noise = complex_normal(draws, grid, grid, grid, scale=0.1 * size)
    return (Example((torch.polar(torch.full_like(phase, size), phase) + noise, *more)),)
