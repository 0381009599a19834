"""Family `ivhl`: the entanglement entropy of pure states across a cut.

Source: Nielsen and Chuang, *Quantum Computation and Quantum Information*, sections 2.5 and 11.3. Entropies are in nats.
The singular values come from a library call that no compiler rewrites. Any remaining gain lies around it.
"""

from __future__ import annotations

import functools

import torch

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.ivhl.complexes import complex_dtype, complex_normal


def entanglement_entropy(states: torch.Tensor, left: int) -> torch.Tensor:
    """Return the entropy of entanglement between two parts of each state.

    S = −Σ_i p_i ln p_i, with p_i = σ_i² / Σ_j σ_j² from the singular values σ of the state as a matrix (left, right).
    A state need not be normalised.

    Args:
        states: (..., left · right), real or complex, not zero. The left part's index is the slow one.
        left: the dimension of the left part, a divisor of the last dimension of `states`.

    Returns:
        S, (...), real, from 0 (a product state) to ln min(left, right). Its gradient is finite if no σ is 0 and no two
        are equal.
    """
    weights = torch.linalg.svdvals(states.unflatten(-1, (left, -1))).square()
    probabilities = weights / weights.sum(dim=-1, keepdim=True)
    entropy: torch.Tensor = torch.special.entr(probabilities).sum(dim=-1)
    return entropy


def build_entanglement_entropy(request: Request, *, states: int, left: int, right: int) -> Workload:
    """Build it on random states, uniform over the sphere up to their length: nearly all of them highly entangled.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    complex_dtype(request)
    examples = functools.partial(_examples, request, states, left, right)
    return Workload(
        entanglement_entropy,
        examples(request.seed),
        name=request.name,
        roofline=_roofline(request.dtype.itemsize, states, max(left, right), min(left, right)),
        reseed=examples,
    )


def _roofline(itemsize: int, states: int, rows: int, columns: int) -> Roofline:
    """Count singular values without vectors, by bidiagonalisation, and the states read once.

    It takes 4mn² − 4n³/3 operations (Golub and Van Loan, *Matrix Computations*, section 5.4), four times as many in
    complex numbers. Per singular value: square 1, sum 1, division 1, logarithm, product and sum 3.
    """
    bidiagonal = 4 * rows * columns**2 - 4 * columns**3 / 3
    return Roofline(
        flops=states * (4 * bidiagonal + 6.0 * columns),
        bytes=float(itemsize * states * (2 * rows * columns + 1)),
    )


def _examples(request: Request, states: int, left: int, right: int, seed: int) -> tuple[Example, ...]:
    return (Example((complex_normal(request.draws(seed), states, left * right), left)),)
