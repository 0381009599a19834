"""Family `ivhl`: a condensate on a group manifold, the torus U(1)^d, as a periodic lattice of any dimension d.

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

DIMENSIONS = 3
"""d, by default."""

STEP_FLOPS = 15
"""Per site, besides the Laplacian: |φ|² 3, m² + λ|φ|² 2, times −½ 2, times φ 2, sum 2, times dt 2, difference 2."""


def laplacian(field: torch.Tensor, dimensions: int = DIMENSIONS) -> torch.Tensor:
    """Return Σ_a (φ(x + e_a) + φ(x − e_a) − 2 φ(x)) over the last dimensions, which are periodic.

    The error against the continuum is of second order in the lattice spacing. Dimensions before those are batches.
    """
    total = -2.0 * dimensions * field
    for dim in range(-dimensions, 0):
        total = total + torch.roll(field, 1, dim) + torch.roll(field, -1, dim)
    return total


def condensate_potential(
    field: torch.Tensor,
    mass_squared: float = MASS_SQUARED,
    coupling: float = COUPLING,
    dimensions: int = DIMENSIONS,
) -> torch.Tensor:
    """Return the energy density of the condensate at every site.

    V(x) = Re(φ* · (−½ ∇²φ)) + m² |φ|² + λ |φ|⁴

    Args:
        field: φ, complex, periodic in its last `dimensions` dimensions, such as (G, G, G).
        mass_squared: m².
        coupling: λ.
        dimensions: d.

    Returns:
        V, of the field's shape, real. Its kinetic share sums to at least 0 over the lattice. (The sum that the equation
        below conserves is the one with λ/2 for λ.)
    """
    density = field.abs().square()
    kinetic: torch.Tensor = (field.conj() * (-0.5 * laplacian(field, dimensions))).real
    return kinetic + mass_squared * density + coupling * density.square()


def gross_pitaevskii_step(
    field: torch.Tensor,
    mass_squared: float = MASS_SQUARED,
    coupling: float = COUPLING,
    time_step: float = TIME_STEP,
    dimensions: int = DIMENSIONS,
) -> torch.Tensor:
    """Move the condensate on by one explicit Euler step of i ∂φ/∂t = (−½ ∇² + m² + λ |φ|²) φ.

    φ ← φ − i dt (−½ ∇²φ + m² φ + λ |φ|² φ)

    One stage, so one stencil: the cheapest step there is. It multiplies a plane wave of frequency ω by exactly
    1 − i dt ω. So the norm Σ|φ|², which the equation conserves, grows by a factor 1 + O(dt²) in a step. Over a given
    time, norm and field are right to first order in dt.

    Args:
        field: φ, complex, periodic in its last `dimensions` dimensions, such as (G, G, G).
        mass_squared: m².
        coupling: λ.
        time_step: dt.
        dimensions: d.

    Returns:
        φ after the step, in new memory.
    """
    chemical = mass_squared + coupling * field.abs().square()
    return field - 1j * time_step * (-0.5 * laplacian(field, dimensions) + chemical * field)


def gross_pitaevskii(field: torch.Tensor, steps: int, dimensions: int = DIMENSIONS) -> torch.Tensor:
    """Move the condensate on by `steps` such steps: a loop in Python, which a compiler unrolls or leaves alone."""
    for _ in range(steps):
        field = gross_pitaevskii_step(field, dimensions=dimensions)
    return field


def build_condensate_potential(request: Request, *, grid: int, dimensions: int = DIMENSIONS) -> Workload:
    """Build it on the field that `build_gross_pitaevskii_step` starts from.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    complex_dtype(request)
    examples = functools.partial(_examples, request, grid, dimensions, ())
    sites = grid**dimensions
    return Workload(
        condensate_potential,
        examples(request.seed),
        name=request.name,
        # Per site: Laplacian, |φ|² 3, real part of the product 3, times −½ 1, potential 5. φ is read, V written.
        roofline=Roofline(
            flops=float(_count_laplacian(dimensions) + 12) * sites, bytes=float(3 * request.dtype.itemsize * sites)
        ),
        reseed=examples,
    )


def build_gross_pitaevskii_step(request: Request, *, grid: int, dimensions: int = DIMENSIONS) -> Workload:
    """Build one step from near the vacuum: |φ| = √(−m²/λ) and one phase, with noise of 10 % on both.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    complex_dtype(request)
    examples = functools.partial(_examples, request, grid, dimensions, ())
    roofline = _evolution_roofline(request, grid, dimensions, 1)
    return Workload(
        gross_pitaevskii_step, examples(request.seed), name=request.name, roofline=roofline, reseed=examples
    )


def build_gross_pitaevskii(request: Request, *, grid: int, steps: int, dimensions: int = DIMENSIONS) -> Workload:
    """Build `steps` steps from the same field.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    complex_dtype(request)
    examples = functools.partial(_examples, request, grid, dimensions, (steps,))
    roofline = _evolution_roofline(request, grid, dimensions, steps)
    return Workload(gross_pitaevskii, examples(request.seed), name=request.name, roofline=roofline, reseed=examples)


def _count_laplacian(dimensions: int) -> int:
    """Count, per site, the neighbours added to −2d φ, each for the real and the imaginary part."""
    return 2 * (2 * dimensions + 1)


def _evolution_roofline(request: Request, grid: int, dimensions: int, steps: int) -> Roofline:
    """Count a read and a write of the field in every step, which ends as a site needs its neighbours' last values.

    (A field that stays in the last-level cache moves faster than main memory would let it.)
    """
    sites = steps * grid**dimensions
    flops = float((_count_laplacian(dimensions) + STEP_FLOPS) * sites)
    return Roofline(flops=flops, bytes=float(4 * request.dtype.itemsize * sites))


def _examples(request: Request, grid: int, dimensions: int, more: tuple[int, ...], seed: int) -> tuple[Example, ...]:
    draws = request.draws(seed)
    size = math.sqrt(-MASS_SQUARED / COUPLING)
    phase = draws.uniform(high=2 * math.pi)
    noise = complex_normal(draws, *[grid] * dimensions, scale=0.1 * size)
    field = torch.polar(torch.full_like(phase, size), phase) + noise
    return (Example((field, *more), {} if dimensions == DIMENSIONS else {"dimensions": dimensions}),)
