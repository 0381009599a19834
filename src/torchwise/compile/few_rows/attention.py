"""The operator of attention of few rows, which compiled code calls.

The form of its kernels is chosen by time (`tuning.py`). PyTorch's fused attention has a program for each head and block
of queries: a step of decoding has so few of them that most of a GPU waits.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchwise.compile.few_rows.forms import round_up
from torchwise.compile.few_rows.operator import runs_kernels, starts_early
from torchwise.compile.few_rows.tuning import copy_tensors, find_form

KERNELS = "torchwise.compile.few_rows.attention_kernel"
MAX_ROWS = 16
"""Queries of one batch. Units of matrices multiply at least as many."""
MAX_FEATURES = 256
TYPES = (torch.bfloat16, torch.float16, torch.float32)
PROGRAMS = (1, 128, 256, 512)
"""Programs of a kernel, about, that are tried."""

_library = torch.library.Library("torchwise", "FRAGMENT")
_library.define(
    "attention_of_few_rows(Tensor query, Tensor[] keys, Tensor[] values, Tensor?[] masks, float scale) -> Tensor"
)


@dataclass(frozen=True)
class Form:
    """How the kernels are cut.

    Attributes:
        block: keys that a program reads at once.
        tiles: how many such blocks it reads, one after the other.
        warps: of 32 threads, of a program.
    """

    block: int
    tiles: int
    warps: int


@dataclass(frozen=True)
class Work:
    """The work of the kernels.

    Attributes:
        batches: their number.
        rows: queries of each.
        features: numbers of a query and of a key.
        outputs: numbers of a value.
        lengths: keys of each block.
        kinds: of the masks, as in the kernel.
    """

    batches: int
    rows: int
    features: int
    outputs: int
    lengths: tuple[int, ...]
    kinds: tuple[str, ...]

    def count_tiles(self, block: int) -> int:
        """Return the blocks of keys that a batch has in all."""
        return sum(-(-length // block) for length in self.lengths)

    def count_parts(self, form: Form) -> int:
        """Return the programs of a batch."""
        return -(-self.count_tiles(form.block) // form.tiles)


def attend(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], masks: Sequence[Tensor | None], scale: float
) -> Tensor:
    """Return the attention of queries over several blocks of keys and values, as if these were one.

    Args:
        query: (*batch, rows, features), at most `MAX_ROWS` of them, in one of `TYPES`. A batch has one or two
            dimensions.
        keys: (*batch, length, features) each.
        values: (*batch, length, outputs) each.
        masks: for each block of booleans that are true where scores stay, or of the query's type to be added to the
            scores, or None. Their sizes can become (*batch, rows, length).
        scale: by which scores are multiplied.

    Returns:
        (*batch, rows, outputs), contiguous. A row of which all scores are hidden is zero.
    """
    if not _can_launch(query, keys, values):
        return attend_plainly(query, keys, values, masks, scale)
    work = Work(
        query.shape[:-2].numel(),
        query.shape[-2],
        query.shape[-1],
        values[0].shape[-1],
        tuple(key.shape[-2] for key in keys),
        tuple(_name_kind(mask) for mask in masks),
    )

    def begin_timing() -> tuple[Callable[[Form | None], object], int]:
        copies = copy_tensors((*keys, *values))
        turns = itertools.cycle(copies)

        def compute(form: Form | None) -> object:
            copied = next(turns)
            blocks = query, copied[: len(keys)], copied[len(keys) :], masks
            return attend_plainly(*blocks, scale) if form is None else _launch(form, work, *blocks, scale)

        return compute, len(copies)

    forms = list_forms(work)
    given = [one for one in (query, *keys, *values, *masks) if one is not None]
    key = ("attention", work, query.dtype, tuple((one.shape, one.stride()) for one in given))
    form = find_form(
        *(key, KERNELS, query.device, forms),
        lambda form: _launch(form, work, query, keys, values, masks, scale),
        begin_timing,
    )
    if form is None:
        return attend_plainly(query, keys, values, masks, scale)
    return _launch(form, work, query, keys, values, masks, scale)


def attend_plainly(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], masks: Sequence[Tensor | None], scale: float
) -> Tensor:
    """Return the same by PyTorch's own operators."""
    if len(keys) == 1:
        key, value, mask = keys[0], values[0], masks[0]
    else:
        key, value, mask = torch.cat([*keys], -2), torch.cat([*values], -2), None
        if any(one is not None for one in masks):
            mask = torch.cat([_add(one, query, each) for one, each in zip(masks, keys, strict=True)], -1)
    return functional.scaled_dot_product_attention(query, key, value, mask, scale=scale).contiguous()


def _add(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """Return the mask of a block as numbers that are added, (*batch, rows, length)."""
    added = query.new_zeros((*query.shape[:-1], key.shape[-2]))
    if mask is None:
        return added
    return added.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else added + mask


def describe(
    query: Tensor,
    _keys: Sequence[Tensor],
    values: Sequence[Tensor],
    _masks: Sequence[Tensor | None],
    _scale: float,
) -> Tensor:
    """Return a tensor without data that is like the answer."""
    return query.new_empty((*query.shape[:-1], values[0].shape[-1]))


_library.impl("attention_of_few_rows", attend, "CUDA")
_library.impl("attention_of_few_rows", attend, "CPU")
torch.library.register_fake("torchwise::attention_of_few_rows", describe, lib=_library)
attention_of_few_rows = torch.ops.torchwise.attention_of_few_rows.default


def list_forms(work: Work) -> list[Form]:
    """Return the forms of the kernels that are tried, the likeliest first: one program a batch comes last."""
    found = []
    for programs in PROGRAMS[1:] + PROGRAMS[:1]:
        for block in (64, 32):
            tiles = max(-(-work.count_tiles(block) * work.batches // programs), 1) if programs > 1 else 1 << 30
            form = Form(block, min(tiles, work.count_tiles(block)), 4)
            found.append(form)
    return list(dict.fromkeys(found))


def _can_launch(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> bool:
    """Whether the kernels read these tensors as they lie in memory."""
    return (
        runs_kernels(query.device.type)
        and query.dim() in (3, 4)
        and 0 < query.shape[-2] <= MAX_ROWS
        and query.numel() > 0
        and all(one.numel() > 0 and one.stride(-1) == 1 for one in (query, *keys, *values))
        and max(query.shape[-1], values[0].shape[-1]) <= MAX_FEATURES
    )


def _name_kind(mask: Tensor | None) -> str:
    return "" if mask is None else "keep" if mask.dtype is torch.bool else "add"


def _launch(
    form: Form,
    work: Work,
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    masks: Sequence[Tensor | None],
    scale: float,
) -> Tensor:
    """Launch the kernels, and return the answer."""
    kernels, device, parts = _load_kernels(), query.device, work.count_parts(form)
    found = query.new_empty((*query.shape[:-1], work.outputs))
    is_joined = parts > 1
    mixed, sums = found, found  # of which nothing is read
    if is_joined:
        mixed = query.new_empty((work.batches, parts, work.rows, work.outputs), dtype=torch.float32)
        sums = query.new_empty((work.batches, parts, 2, work.rows), dtype=torch.float32)
    seen = [
        None if one is None else one.expand(*query.shape[:-1], length)
        for one, length in zip(masks, work.lengths, strict=True)
    ]
    is_early = query.is_cuda and starts_early(device)
    shared: dict[str, Any] = {
        "ROWS": work.rows,
        "OUTER": work.outputs,
        "PARTS": parts,
        "BLOCK_OUTER": max(round_up(work.outputs), 16),
        "STARTS_EARLY": is_early,
        "num_warps": form.warps,
        **({"launch_pdl": True} if is_early else {}),
    }
    with torch.cuda.device(device if query.is_cuda else -1):  # on which Triton launches
        kernels.attend[(work.batches, parts)](
            query,
            tuple(keys),
            tuple(values),
            tuple(query if one is None else one.view(torch.uint8) if one.dtype is torch.bool else one for one in seen),
            *(found, mixed, sums, scale),
            QUERY_STRIDES=_strides_of(query),
            KEY_STRIDES=tuple(map(_strides_of, keys)),
            VALUE_STRIDES=tuple(map(_strides_of, values)),
            MASK_STRIDES=tuple((0, 0, 0, 0) if one is None else (*_strides_of(one), one.stride(-1)) for one in seen),
            COUNT=len(keys),
            LENGTHS=work.lengths,
            STEPS=tuple(min(form.tiles, -(-length // form.block)) for length in work.lengths),
            SECOND=query.shape[1] if query.dim() == 4 else 1,
            INNER=work.features,
            KINDS=work.kinds,
            BLOCK_ROWS=MAX_ROWS,
            BLOCK_INNER=max(round_up(work.features), 16),
            BLOCK=form.block,
            TILES=form.tiles,
            **shared,
        )
        if is_joined:
            kernels.join[(work.batches, work.rows)](mixed, sums, found, BLOCK_PARTS=round_up(parts), **shared)
    return found


def _strides_of(tensor: Tensor) -> tuple[int, int, int]:
    """Return the strides of both dimensions of a batch, and of rows."""
    first, *second, row = tensor.stride()[:-1]
    return first, second[0] if second else 0, row


@functools.cache
def _load_kernels() -> Any:
    return importlib.import_module(KERNELS)
