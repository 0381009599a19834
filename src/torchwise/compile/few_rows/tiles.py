"""Sums by tensor cores for the kernel of products of few rows, in Triton.

Tensor cores need no more time for 16 rows than for one. They have no products of float32, so each number is cut into
two of TF32, and a product is three of those. A warp multiplies a part of the inputs. A sum waits for the one before it
for longer than it takes, and so each warp has fewer sums to wait for.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_tiles(
    rows,
    gain,
    weight,
    other,
    row,
    first,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    LENGTH: tl.constexpr,
    HAS_GAIN: tl.constexpr,
    EPSILON: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_TURNED: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_OTHER: tl.constexpr,
):
    """Return both products by tensor cores, and the sums of squares (BLOCK_ROWS, 1) of the rows."""
    part = tl.arange(0, PARTS)[:, None, None] * (WIDTH // PARTS)
    inner = tl.arange(0, WIDTH // PARTS)
    m = tl.minimum(row + tl.arange(0, BLOCK_ROWS), ROWS - 1)[None, :, None] * LENGTH
    n = (first + tl.arange(0, BLOCK))[None, None, :]
    total = tl.zeros([PARTS, BLOCK_ROWS, BLOCK], tl.float32)
    second = tl.zeros([PARTS, BLOCK_ROWS, BLOCK], tl.float32)
    squares = tl.zeros([PARTS, BLOCK_ROWS], tl.float32)
    for start in tl.range(0, LENGTH, WIDTH, num_stages=STAGES):
        k = start + part + inner[None, None, :]
        x = _load_tile(rows + m + k, k < LENGTH, LENGTH % WIDTH == 0)
        if EPSILON is not None:
            squares += tl.sum(x.to(tl.float32) * x.to(tl.float32), 2)
        if HAS_GAIN:
            factors = _load_tile(gain + k, k < LENGTH, LENGTH % WIDTH == 0)
            x = (x.to(tl.float32) * factors.to(tl.float32)).to(x.dtype)
        k = start + part + inner[None, :, None]
        at = k.to(tl.int64) * SIZE + n if IS_TURNED else n.to(tl.int64) * LENGTH + k
        is_whole: tl.constexpr = LENGTH % WIDTH == 0 and SIZE % BLOCK == 0
        total = _add_product(total, x, _load_tile(weight + at, (k < LENGTH) & (n < SIZE), is_whole).to(x.dtype))
        if HAS_OTHER:
            second = _add_product(second, x, _load_tile(other + at, (k < LENGTH) & (n < SIZE), is_whole).to(x.dtype))
    return tl.sum(total, 0), tl.sum(second, 0), tl.sum(squares, 0)[:, None]


@triton.jit
def _add_product(total, x, weight):
    """Add a product of tiles. One of float32 is three of TF32, of the leading bits of numbers and of the rest.

    Tensor cores cut sums off towards zero, more so the larger they are. So each tile has a sum of its own, the rests
    come first, and the total is rounded as other sums are (https://arxiv.org/abs/2203.03341).
    """
    if x.dtype == tl.float32:
        first, first_rest = _split(x)
        second, second_rest = _split(weight)
        product = tl.dot(first_rest, second, tl.zeros_like(total), input_precision="tf32")
        product = tl.dot(first, second_rest, product, input_precision="tf32")
        product = tl.where(product == product, product, 0.0)  # an infinite number times no rest
        total += tl.dot(first, second, product, input_precision="tf32")
    else:
        total = tl.dot(x, weight, total)
    return total


@triton.jit
def _split(x):
    """Return the leading bits of numbers, and the rest rounded to as many.

    Triton's own "tf32x3" cuts the rest off, always towards zero. Over 40 layers that adds up.
    """
    bits = x.to(tl.int32, bitcast=True)
    first = (bits & -8192).to(tl.float32, bitcast=True)
    rest = x - first
    return first, ((rest.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _load_tile(at, is_there, IS_WHOLE: tl.constexpr):
    return tl.load(at, mask=None if IS_WHOLE else is_there, other=None if IS_WHOLE else 0.0)
