"""The kernels of attention of few rows, in Triton. They are imported when the first of them is launched.

A step of decoding has one query for each head, and some heads share their keys. A program reads a part of the keys and
values of one batch for all of its queries, with the softmax as it goes along
(https://arxiv.org/abs/1805.02867, https://arxiv.org/abs/2307.08691). If there are several parts, a second kernel joins
them, as in Flash-Decoding (https://pytorch.org/blog/flash-decoding).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend(
    query,
    keys,
    values,
    masks,
    output,
    mixed_parts,
    sums,
    scale,
    QUERY_STRIDES: tl.constexpr,
    KEY_STRIDES: tl.constexpr,
    VALUE_STRIDES: tl.constexpr,
    MASK_STRIDES: tl.constexpr,
    COUNT: tl.constexpr,
    LENGTHS: tl.constexpr,
    STEPS: tl.constexpr,
    SECOND: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    KINDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    TILES: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    """Attend over one part of the keys and values, which are COUNT blocks (first, SECOND, LENGTHS[i], INNER or OUTER).

    Part p has the tiles from p * TILES on, of all blocks one after the other, and at most STEPS of each. KINDS says
    whether a block has no mask (""), one of booleans that are true where scores stay ("keep"), or one that is added
    ("add"). Features lie side by side in memory. Strides are those of both dimensions of a batch, of rows, and for
    masks of columns. As constants they tell the compiler that 16 bytes can be read at a time.
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    batch, part = tl.program_id(0), tl.program_id(1)
    b0, b1 = (batch // SECOND).to(tl.int64), (batch % SECOND).to(tl.int64)
    row, inner, outer = tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_INNER), tl.arange(0, BLOCK_OUTER)
    at = query + b0 * QUERY_STRIDES[0] + b1 * QUERY_STRIDES[1]
    q = tl.load(
        at + row[:, None] * QUERY_STRIDES[2] + inner[None, :],
        mask=(row < ROWS)[:, None] & (inner < INNER)[None, :],
        other=0.0,
    )
    highest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    mixed = tl.zeros([BLOCK_ROWS, BLOCK_OUTER], tl.float32)
    first = part * TILES
    for place in tl.static_range(COUNT):
        tiles = (LENGTHS[place] + BLOCK - 1) // BLOCK
        if (first < tiles) & (first + TILES > 0):
            key = keys[place] + b0 * KEY_STRIDES[place][0] + b1 * KEY_STRIDES[place][1]
            value = values[place] + b0 * VALUE_STRIDES[place][0] + b1 * VALUE_STRIDES[place][1]
            for step in range(STEPS[place]):
                column = (tl.maximum(first, 0) + step) * BLOCK + tl.arange(0, BLOCK)
                within = column < tl.minimum((first + TILES) * BLOCK, LENGTHS[place])
                k = tl.load(
                    key + column[None, :].to(tl.int64) * KEY_STRIDES[place][2] + inner[:, None],
                    mask=within[None, :] & (inner < INNER)[:, None],
                    other=0.0,
                )
                v = tl.load(
                    value + column[:, None].to(tl.int64) * VALUE_STRIDES[place][2] + outer[None, :],
                    mask=within[:, None] & (outer < OUTER)[None, :],
                    other=0.0,
                )
                score = tl.dot(q, k, input_precision="ieee") * scale
                if KINDS[place] != "":
                    mask = masks[place] + b0 * MASK_STRIDES[place][0] + b1 * MASK_STRIDES[place][1]
                    mask = mask + row[:, None] * MASK_STRIDES[place][2] + column[None, :] * MASK_STRIDES[place][3]
                    read = tl.load(mask, mask=(row < ROWS)[:, None] & within[None, :], other=0)
                    if KINDS[place] == "keep":
                        score = tl.where(read != 0, score, float("-inf"))
                    else:
                        score += read.to(tl.float32)
                score = tl.where(within[None, :], score, float("-inf"))
                new = tl.maximum(highest, tl.max(score, 1))
                base = tl.where(new == float("-inf"), 0.0, new)  # as long as all scores are hidden
                weight, decay = tl.exp(score - base[:, None]), tl.exp(highest - base)
                total = total * decay + tl.sum(weight, 1)
                mixed = mixed * decay[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
                highest = new
        first -= tiles
    if PARTS == 1:
        _store(output + batch.to(tl.int64) * ROWS * OUTER, mixed, total, row, outer, ROWS, OUTER)
    else:
        place = batch.to(tl.int64) * PARTS + part
        is_row = row < ROWS
        tl.store(
            mixed_parts + place * ROWS * OUTER + row[:, None] * OUTER + outer[None, :],
            mixed,
            mask=is_row[:, None] & (outer < OUTER)[None, :],
        )
        tl.store(sums + place * 2 * ROWS + row, highest, mask=is_row)
        tl.store(sums + place * 2 * ROWS + ROWS + row, total, mask=is_row)


@triton.jit
def join(
    mixed_parts,
    sums,
    output,
    ROWS: tl.constexpr,
    OUTER: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
):
    """Join the parts of one row of one batch."""
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    batch, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part, outer = tl.arange(0, BLOCK_PARTS), tl.arange(0, BLOCK_OUTER)
    at = (batch * PARTS + part) * ROWS
    highest = tl.load(sums + 2 * at + row, mask=part < PARTS, other=float("-inf"))
    totals = tl.load(sums + 2 * at + ROWS + row, mask=part < PARTS, other=0.0)
    mixed = tl.load(
        mixed_parts + (at + row)[:, None] * OUTER + outer[None, :],
        mask=(part < PARTS)[:, None] & (outer < OUTER)[None, :],
        other=0.0,
    )
    most = tl.max(highest, 0)
    factors = tl.exp(highest - tl.where(most == float("-inf"), 0.0, most))
    total = tl.sum(factors * totals, 0)
    whole = tl.sum(mixed * factors[:, None], 0)
    answer = tl.where(total == 0.0, 0.0, whole / total)
    tl.store(output + (batch * ROWS + row) * OUTER + outer, answer.to(output.dtype.element_ty), mask=outer < OUTER)


@triton.jit
def _store(output, mixed, total, row, outer, ROWS: tl.constexpr, OUTER: tl.constexpr):
    """Store the means. A row that no score is left of is zero, as PyTorch's fused attention has it."""
    answer = tl.where(total[:, None] == 0.0, 0.0, mixed / total[:, None])
    tl.store(
        output + row[:, None] * OUTER + outer[None, :],
        answer.to(output.dtype.element_ty),
        mask=(row < ROWS)[:, None] & (outer < OUTER)[None, :],
    )
