"""Family `arr_coc`: a level of detail for every patch, from its relevance and a total of tokens.

Everything happens on the device and in fixed shapes: nothing waits for a number, and no shape depends on one.
"""

from __future__ import annotations

import functools

import torch

from torchwise.errors import WorkloadError
from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.arr_coc.patches import window_sum

MIN_TOKENS, MAX_TOKENS = 64, 400
"""Tokens that a patch gets: 8×8 to 20×20 samples of it."""
MEAN = 200
"""Tokens per patch on average, which makes the total of an image."""
LEVELS = 3
"""Levels of detail: 20×20 samples are level 0, each next level halves them in both directions, 8×8 is level 1.32."""

_FAINTEST = -60.0
"""e to it is far from underflow in float32: the share of a patch may vanish, a division by it must not."""


def allocate(relevance: torch.Tensor, total: int) -> torch.Tensor:
    """Share the `total` of tokens of an image among its patches: 64 to 400 each, the more relevant the more.

    b_i = 64 + min(336, c · exp r_i), with the one c for which Σ_i b_i = total. So each patch gets the minimum, and
    softmax shares out the rest. Any excess over a patch's maximum goes to the others in the same proportions. The
    solution is found by filling in the order of relevance: with the j least relevant patches below their cap,
    c_j = (rest − 336 · (patches − j)) / Σ_{i ≤ j} exp r_i, and the largest j that overfills none of them is right. It
    is continuous in r, and has gradients for every patch below its cap.

    Args:
        relevance: r, (batch, patches), dimensionless. A value more than 60 below the largest of an image counts as 60
            below.
        total: tokens per image, from 64 · patches to 400 · patches.

    Returns:
        b, (batch, patches), real numbers of tokens, in the dtype of `relevance` but at least float32. The bounds hold
        to a rounding of the dtype, the sum to a few of them (a relative 1e-6 in float32).

    Raises:
        ValueError: that many tokens, or that few, cannot be shared within the bounds.
    """
    patches = relevance.shape[-1]
    if not MIN_TOKENS * patches <= total <= MAX_TOKENS * patches:
        raise ValueError(f"total is {total}, but must be from {MIN_TOKENS * patches} to {MAX_TOKENS * patches}")
    relevance = relevance.to(torch.promote_types(relevance.dtype, torch.float32))
    # The largest only sets the scale of c, on which nothing depends.
    shares = (relevance - relevance.detach().amax(dim=-1, keepdim=True)).clamp(min=_FAINTEST).exp()
    return MIN_TOKENS + (_factor(shares, total - MIN_TOKENS * patches) * shares).clamp(max=MAX_TOKENS - MIN_TOKENS)


def _factor(shares: torch.Tensor, rest: int) -> torch.Tensor:
    """Return c, (batch, 1), from shares exp r, (batch, patches), and the tokens above the least."""
    patches, room = shares.shape[-1], MAX_TOKENS - MIN_TOKENS
    rising = shares.sort(dim=-1).values
    full = torch.arange(patches - 1, -1, -1, device=shares.device)  # patches at their cap, where j are not
    factors = (rest - room * full) / rising.cumsum(dim=-1)
    fitting = (factors * rising <= room).sum(dim=-1, keepdim=True)
    # Mathematically one always fits; where all patches are full, rounding may say otherwise.
    return factors.gather(-1, (fitting - 1).clamp(min=0))


def blend(features: torch.Tensor, budgets: torch.Tensor, grid: int) -> torch.Tensor:
    """Show each patch at the level of detail its tokens pay for, and weigh it by them.

    y_i = b_i / mean(b) · Σ_l max(0, 1 − |λ_i − l|) · x_i^(l) with λ_i = ½ log2(400 / b_i), as in trilinear texture
    mapping (Williams 1983, https://doi.org/10.1145/800059.801126). x^(l) is the mean over the patches of the grid at a
    distance of up to l. It is not subsampled, so that it does not matter where blocks would begin. The mean of y over
    the patches is the mean of the blended features over all tokens.

    Args:
        features: x, (batch, grid², width).
        budgets: b, (batch, grid²), tokens from 64 to 400.
        grid: patches along a side.

    Returns:
        y, of the shape and dtype of `features`.
    """
    level = 0.5 * torch.log2(MAX_TOKENS / budgets)
    weight = budgets / budgets.mean(dim=-1, keepdim=True)
    plane = features.transpose(1, 2).unflatten(-1, (grid, grid))
    blended = torch.zeros_like(features)
    for coarseness in range(LEVELS):
        share = weight * (1 - (level - coarseness).abs()).clamp(min=0)
        blended = blended + share.to(features.dtype)[..., None] * _blur(plane, coarseness)
    return blended


def _blur(plane: torch.Tensor, distance: int) -> torch.Tensor:
    """Average (batch, width, grid, grid) over neighbours that exist, up to `distance`. Return (batch, grid², width)."""
    if distance:
        plane = window_sum(plane, distance) / window_sum(plane.new_ones(1, 1, *plane.shape[-2:]), distance)
    return plane.flatten(2).transpose(1, 2)


def build_detail(request: Request, *, batch: int, patches: int) -> Workload:
    """Build the allocation for images of `patches`, with 200 tokens per patch on average.

    Raises:
        WorkloadError: the dtype is narrower than float32, in which numbers of tokens are not even whole.
    """
    if request.dtype not in (torch.float32, torch.float64):
        raise WorkloadError(
            f"dtype is {request.dtype}, but {request.name} must be torch.float32 or torch.float64: "
            "a narrower type does not hold the number of tokens of an image"
        )
    examples = functools.partial(_examples, request, batch, patches)
    return Workload(
        allocate,
        examples(request.seed),
        name=request.name,
        roofline=Roofline(detail_flops(batch, patches), float(request.dtype.itemsize * 2 * batch * patches)),
        reseed=examples,
    )


def detail_flops(batch: int, patches: int) -> float:
    """Count, per patch: share 4, order (a comparison per halving of the patches), sum, factor 3, fit 3, budget 3."""
    return batch * patches * (14.0 + (patches - 1).bit_length())


def _examples(request: Request, batch: int, patches: int, seed: int) -> tuple[Example, ...]:
    return (Example((request.draws(seed + 1).normal(batch, patches), MEAN * patches)),)
