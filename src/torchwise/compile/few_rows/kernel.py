"""The kernel of products of few rows, in Triton. It is imported when the first of them is launched.

A product of one row uses each weight once, so it takes as long as reading the weights. A program has a block of
outputs. Its threads read 16 bytes of a row of the weight at a time, many of them before they need the first. They sum
in float32, and the sums of all threads are added last. So are the squares of the rows, for their norm
(https://arxiv.org/abs/1910.07467). Turned weights have their outputs side by side in memory, and
not their inputs.

On Hopper a program may begin while the kernel before it ends. It waits before it reads anything, as that kernel may
have written to the weights, too. To ask for the weights before that made the kernel before it slower.
"""

from __future__ import annotations

import triton
import triton.language as tl

from torchwise.compile.few_rows.tiles import sum_tiles

BYTES_TO_FLOATS = tl.constexpr(
    """{
    .reg .b32 bytes;
    xor.b32 bytes, $4, 0x80808080;
    prmt.b32 $0, bytes, 0x4B000000, 0x7440;
    prmt.b32 $1, bytes, 0x4B000000, 0x7441;
    prmt.b32 $2, bytes, 0x4B000000, 0x7442;
    prmt.b32 $3, bytes, 0x4B000000, 0x7443;
    sub.f32 $0, $0, 0f4B000080;
    sub.f32 $1, $1, 0f4B000080;
    sub.f32 $2, $2, 0f4B000080;
    sub.f32 $3, $3, 0f4B000080;
    }"""
)
"""Four signed bytes as floats, in PTX. The instruction for it has a quarter of the rate of these, too few for memory.

A byte plus 128 is put behind the point of 2 to the power of 23. Then that, and 128, are subtracted. It is exact."""


@triton.jit
def multiply(
    rows,
    weights,
    scales,
    biases,
    gain,
    added,
    outputs,
    COUNT: tl.constexpr,
    ROWS: tl.constexpr,
    SIZES: tl.constexpr,
    LENGTH: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIASES: tl.constexpr,
    HAS_GAIN: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    EPSILON: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_UNROLLED: tl.constexpr,
    IS_TURNED: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
    HAS_PTX: tl.constexpr,
):
    """Multiply rows (ROWS, LENGTH) by COUNT weights (SIZES[i], LENGTH), each of which has programs of its own.

    Turned weights lie in memory as (LENGTH, SIZES[i]). All other tensors are contiguous.

    With an activation there is one output: that of the first product, times the second one if there are two weights, of
    one size. `added` (ROWS, SIZES[0]) is added to the only output. EPSILON is None, or else the rows are divided by the
    root of their mean square plus EPSILON, and with a gain (LENGTH,) multiplied by it. Turned weights have no norm.

    A program has BLOCK_ROWS rows and BLOCK outputs. If STAGES is 0, those are all rows, and they are multiplied number
    by number. Otherwise tensor cores multiply them (`tiles.py`).
    """
    tl.static_assert(EPSILON is None or not IS_TURNED)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(1) * BLOCK_ROWS
    if ACTIVATION != "" and COUNT == 2:
        first = tl.program_id(0) * BLOCK
        # Before the sums, as memory answers meanwhile.
        scale, bias = _read(scales[0], biases[0], first, SIZES[0], HAS_SCALES, HAS_BIASES, BLOCK)
        scale_1, bias_1 = _read(scales[1], biases[1], first, SIZES[1], HAS_SCALES, HAS_BIASES, BLOCK)
        rest = _read_added(added, row, first, ROWS, SIZES[0], HAS_ADDED, BLOCK_ROWS, BLOCK)
        gate, other = _sum(
            rows,
            gain,
            weights[0],
            weights[1],
            row,
            first,
            ROWS,
            SIZES[0],
            LENGTH,
            HAS_GAIN,
            EPSILON,
            BLOCK_ROWS,
            BLOCK,
            WIDTH,
            IS_UNROLLED,
            IS_TURNED,
            STAGES,
            PARTS,
            HAS_PTX,
            True,
        )
        total = _activate(gate * scale + bias, ACTIVATION) * (other * scale_1 + bias_1)
        _store(outputs[0], total + rest, row, first, ROWS, SIZES[0], BLOCK_ROWS, BLOCK)
    else:
        program = tl.program_id(0)
        for place in tl.static_range(COUNT):
            blocks = tl.cdiv(SIZES[place], BLOCK)
            if (program >= 0) & (program < blocks):
                first = program * BLOCK
                weight = weights[place]
                scale, bias = _read(scales[place], biases[place], first, SIZES[place], HAS_SCALES, HAS_BIASES, BLOCK)
                rest = _read_added(added, row, first, ROWS, SIZES[place], HAS_ADDED, BLOCK_ROWS, BLOCK)
                total, _ = _sum(
                    rows,
                    gain,
                    weight,
                    weight,
                    row,
                    first,
                    ROWS,
                    SIZES[place],
                    LENGTH,
                    HAS_GAIN,
                    EPSILON,
                    BLOCK_ROWS,
                    BLOCK,
                    WIDTH,
                    IS_UNROLLED,
                    IS_TURNED,
                    STAGES,
                    PARTS,
                    HAS_PTX,
                    False,
                )
                total = _activate(total * scale + bias, ACTIVATION)
                _store(outputs[place], total + rest, row, first, ROWS, SIZES[place], BLOCK_ROWS, BLOCK)
            program -= blocks


@triton.jit
def _sum(
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
    IS_UNROLLED: tl.constexpr,
    IS_TURNED: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_PTX: tl.constexpr,
    HAS_OTHER: tl.constexpr,
):
    """Return the products (BLOCK_ROWS, BLOCK) of the rows with a block of one weight, and of another if it has one.

    The root of the mean square divides the sums, so that the weights need not wait for it.
    """
    if STAGES == 0:
        total, second, squares = _sum_numbers(
            rows,
            gain,
            weight,
            other,
            first,
            ROWS,
            SIZE,
            LENGTH,
            HAS_GAIN,
            EPSILON,
            BLOCK_ROWS,
            BLOCK,
            WIDTH,
            IS_UNROLLED,
            IS_TURNED,
            HAS_PTX,
            HAS_OTHER,
        )
    else:
        total, second, squares = sum_tiles(
            rows,
            gain,
            weight,
            other,
            row,
            first,
            ROWS,
            SIZE,
            LENGTH,
            HAS_GAIN,
            EPSILON,
            BLOCK_ROWS,
            BLOCK,
            WIDTH,
            IS_TURNED,
            STAGES,
            PARTS,
            HAS_OTHER,
        )
    if EPSILON is not None:
        root = tl.rsqrt(squares / LENGTH + EPSILON)
        total *= root
        second *= root
    return total, second


@triton.jit
def _sum_numbers(
    rows,
    gain,
    weight,
    other,
    first,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    LENGTH: tl.constexpr,
    HAS_GAIN: tl.constexpr,
    EPSILON: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_UNROLLED: tl.constexpr,
    IS_TURNED: tl.constexpr,
    HAS_PTX: tl.constexpr,
    HAS_OTHER: tl.constexpr,
):
    """Return both products number by number, and the sums of squares (BLOCK_ROWS, 1) of the rows."""
    outputs, inputs = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    if IS_TURNED:  # what lies side by side comes last
        n, k = (first + outputs)[None, None, :], inputs[None, :, None]
        total = tl.zeros([BLOCK_ROWS, WIDTH, BLOCK], tl.float32)
        second = tl.zeros([BLOCK_ROWS, WIDTH, BLOCK], tl.float32)
    else:
        n, k = tl.minimum(first + outputs, SIZE - 1)[None, :, None], inputs[None, None, :]
        total = tl.zeros([BLOCK_ROWS, BLOCK, WIDTH], tl.float32)
        second = tl.zeros([BLOCK_ROWS, BLOCK, WIDTH], tl.float32)
    squares = tl.zeros([BLOCK_ROWS, 1, WIDTH], tl.float32)
    m = tl.minimum(tl.arange(0, BLOCK_ROWS), ROWS - 1)[:, None, None] * LENGTH
    if IS_UNROLLED:
        for start in tl.static_range(0, LENGTH, WIDTH):
            x = _load(rows, m, start + k, LENGTH, WIDTH, HAS_PTX, "evict_last")
            if EPSILON is not None:
                squares += x * x
            if HAS_GAIN:
                x *= _load(gain, 0, start + k, LENGTH, WIDTH, HAS_PTX, "evict_last")
            total += x * _load_weight(weight, n, start + k, SIZE, LENGTH, BLOCK, WIDTH, IS_TURNED, HAS_PTX)
            if HAS_OTHER:
                second += x * _load_weight(other, n, start + k, SIZE, LENGTH, BLOCK, WIDTH, IS_TURNED, HAS_PTX)
    else:
        for start in range(0, LENGTH, WIDTH):
            x = _load(rows, m, start + k, LENGTH, WIDTH, HAS_PTX, "evict_last")
            if EPSILON is not None:
                squares += x * x
            if HAS_GAIN:
                x *= _load(gain, 0, start + k, LENGTH, WIDTH, HAS_PTX, "evict_last")
            total += x * _load_weight(weight, n, start + k, SIZE, LENGTH, BLOCK, WIDTH, IS_TURNED, HAS_PTX)
            if HAS_OTHER:
                second += x * _load_weight(other, n, start + k, SIZE, LENGTH, BLOCK, WIDTH, IS_TURNED, HAS_PTX)
    axis: tl.constexpr = 1 if IS_TURNED else 2
    return tl.sum(total, axis), tl.sum(second, axis), tl.sum(squares, 2)


@triton.jit
def _load_weight(
    weight,
    n,
    k,
    SIZE: tl.constexpr,
    LENGTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_TURNED: tl.constexpr,
    HAS_PTX: tl.constexpr,
):
    if IS_TURNED:
        at = weight + k.to(tl.int64) * SIZE + n
        if LENGTH % WIDTH == 0 and SIZE % BLOCK == 0:
            found = tl.load(at, eviction_policy="evict_first")
        else:
            found = tl.load(at, mask=(k < LENGTH) & (n < SIZE), other=0.0, eviction_policy="evict_first")
        numbers = _to_float(found, HAS_PTX)
    else:
        numbers = _load(weight, n.to(tl.int64) * LENGTH, k, LENGTH, WIDTH, HAS_PTX, "evict_first")
    return numbers


@triton.jit
def _load(tensor, row, k, LENGTH: tl.constexpr, WIDTH: tl.constexpr, HAS_PTX: tl.constexpr, POLICY: tl.constexpr):
    if LENGTH % WIDTH == 0:
        found = tl.load(tensor + row + k, eviction_policy=POLICY)
    else:
        found = tl.load(tensor + row + k, mask=k < LENGTH, other=0.0, eviction_policy=POLICY)
    return _to_float(found, HAS_PTX)


@triton.jit
def _to_float(found, HAS_PTX: tl.constexpr):
    if HAS_PTX and found.dtype == tl.int8:
        numbers = tl.inline_asm_elementwise(
            BYTES_TO_FLOATS, "=r,=r,=r,=r,r", [found], dtype=tl.float32, is_pure=True, pack=4
        )
    else:
        numbers = found.to(tl.float32)
    return numbers


@triton.jit
def _read(
    scale, bias, first, SIZE: tl.constexpr, HAS_SCALES: tl.constexpr, HAS_BIASES: tl.constexpr, BLOCK: tl.constexpr
):
    """Return the factors and the summands of a block of outputs."""
    n = tl.minimum(first + tl.arange(0, BLOCK), SIZE - 1)[None, :]
    factors = tl.full([1, BLOCK], 1.0, tl.float32)
    summands = tl.zeros([1, BLOCK], tl.float32)
    if HAS_SCALES:
        factors = tl.load(scale + n).to(tl.float32)
    if HAS_BIASES:
        summands = tl.load(bias + n).to(tl.float32)
    return factors, summands


@triton.jit
def _read_added(
    added,
    row,
    first,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the numbers that are added to a block of outputs."""
    if HAS_ADDED:
        m = tl.minimum(row + tl.arange(0, BLOCK_ROWS), ROWS - 1)[:, None]
        n = tl.minimum(first + tl.arange(0, BLOCK), SIZE - 1)[None, :]
        rest = tl.load(added + m * SIZE + n).to(tl.float32)
    else:
        rest = tl.zeros([1, BLOCK], tl.float32)
    return rest


@triton.jit
def _activate(x, NAME: tl.constexpr):
    if NAME == "silu":
        y = x / (1.0 + tl.exp(-x))
    elif NAME == "sigmoid":
        y = 1.0 / (1.0 + tl.exp(-x))
    elif NAME == "gelu":
        y = 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    elif NAME == "gelu_tanh":  # the mean of one and a hyperbolic tangent is a logistic function
        y = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif NAME == "relu":
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        y = x
    return y


@triton.jit
def _store(
    output,
    values,
    row,
    first,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    m = (row + tl.arange(0, BLOCK_ROWS))[:, None]
    n = (first + tl.arange(0, BLOCK))[None, :]
    tl.store(output + m * SIZE + n, values.to(output.dtype.element_ty), mask=(m < ROWS) & (n < SIZE))
