"""Family `ivhl`: one layer of MERA, the multi-scale entanglement renormalisation ansatz.

Source: Vidal, Phys. Rev. Lett. 99, 220405 (2007), https://arxiv.org/abs/cond-mat/0512165. A disentangler is unitary
(U†U = UU† = 1), an isometry is not square (W†W = 1). Here each acts on a pair of neighbouring site tensors laid end to
end. So matrices of 2d² rows are all there is to read, and the layer is bound by memory.
"""

from __future__ import annotations

import functools
import math

import torch

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Draws, Request
from torchwise_models.zoo.ivhl.complexes import complex_dtype, complex_normal, exact_draws


def mera_layer(tensors: torch.Tensor, disentanglers: torch.Tensor, isometries: torch.Tensor) -> torch.Tensor:
    """Coarse-grain a chain of N sites to one of N/2: disentangle each pair (2n, 2n + 1), then project it.

    v_n = (A_2n, A_2n+1) as one vector of 2d² numbers;   out_n = W_n† U_n v_n

    Args:
        tensors: A, (N, d, d) with N even, complex.
        disentanglers: U, (N/2, 2d², 2d²), complex, unitary.
        isometries: W, (N/2, 2d², d_c), complex, with orthonormal columns.

    Returns:
        (N/2, d_c), of the same dtype. It is never longer than v, and exactly as long if U v lies in the range of W.
    """
    pairs = tensors.reshape(isometries.shape[0], -1)
    disentangled = torch.einsum("nij,nj->ni", disentanglers, pairs)
    return torch.einsum("nij,ni->nj", isometries.conj(), disentangled)


def build_mera_layer(request: Request, *, sites: int, site_dim: int, coarse_dim: int) -> Workload:
    """Build it for N = `sites`, d = `site_dim`, d_c = `coarse_dim`. The entries of A have unit variance.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    examples = functools.partial(_examples, request, complex_dtype(request), sites, site_dim, coarse_dim)
    pairs, rows = sites // 2, 2 * site_dim**2
    matrices = pairs * rows * (rows + coarse_dim)
    return Workload(
        mera_layer,
        examples(request.seed),
        name=request.name,
        # Per matrix entry a complex product (6) and sum (2). Each entry is read once, as is v; only out is written.
        roofline=Roofline(
            flops=8.0 * matrices,
            bytes=float(2 * request.dtype.itemsize * (matrices + pairs * rows + pairs * coarse_dim)),
        ),
        reseed=examples,
    )


def _examples(
    request: Request, dtype: torch.dtype, sites: int, site_dim: int, coarse_dim: int, seed: int
) -> tuple[Example, ...]:
    draws = exact_draws(seed)
    pairs, rows = sites // 2, 2 * site_dim**2
    args = (
        complex_normal(draws, sites, site_dim, site_dim),
        _unitaries(draws, pairs, rows),
        torch.linalg.qr(complex_normal(draws, pairs, rows, coarse_dim)).Q,
    )
    return (Example(tuple(arg.to(request.device, dtype).contiguous() for arg in args)),)


def _unitaries(draws: Draws, count: int, size: int) -> torch.Tensor:
    """Draw D_n Q D'_n with diagonal matrices of random phases: one decomposition, where `count` would take seconds."""
    base = torch.linalg.qr(complex_normal(draws, size, size)).Q
    left, right = (draws.uniform(count, size, high=2 * math.pi) for _ in range(2))
    dressed: torch.Tensor = torch.exp(1j * left)[:, :, None] * base * torch.exp(1j * right)[:, None, :]
    return dressed
