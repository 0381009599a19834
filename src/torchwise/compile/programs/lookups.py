"""Operators that read rows of tables by their number: embeddings, gathers and bags."""

from __future__ import annotations

import math

import torch

from torchwise.compile.programs.lowering import (
    Lower,
    Lowering,
    Operands,
    name_of,
    shape_of,
)
from torchwise.compile.programs.reductions import arrange_rows
from torchwise.compile.programs.values import C_TYPES, Value, View
from torchwise.errors import UnsupportedError


def _embedding(made: Lowering, given: Operands) -> Value:
    name = name_of(given.node)
    if name == "embedding":
        table, index = given.value("weight"), given.value("indices")
    elif name == "index_select":
        table, index = given.value("self"), given.value("index")
        if int(given.number("dim")) % max(len(table.shape), 1):
            raise UnsupportedError("rows are taken along another dimension")
    else:
        table, (index, *more) = given.value("self"), given.tensors("indices")
        if more:
            raise UnsupportedError("several indices")
    if index.dtype not in (torch.int64, torch.int32) or not table.shape:
        raise UnsupportedError("an index that is a mask")
    view, places = made.place_contiguous(table), made.place_contiguous(index)
    width, count = math.prod(table.shape[1:]), math.prod(index.shape)
    out = made.allocate(shape_of(given.node), table.dtype)
    types = f"{C_TYPES[table.dtype]}, {C_TYPES[index.dtype]}"
    wraps = "true" if name == "index" else "false"
    arguments: list[View | str] = [view, str(table.shape[0]), str(width), str(width), places, str(count), wraps]
    return made.call(f"take_rows<{types}>", arguments, out, count * width)


def _gather(made: Lowering, given: Operands) -> Value:
    value, index, dim = given.value("self"), given.value("index"), int(given.number("dim"))
    rank = len(value.shape)
    if not rank or dim % rank != rank - 1 or value.shape[:-1] != index.shape[:-1] or index.dtype is not torch.int64:
        raise UnsupportedError("numbers are gathered along an outer dimension")
    view, count, width, pitch = arrange_rows(made, value, [dim])
    places, out = made.place_contiguous(index), made.allocate(index.shape, value.dtype)
    arguments: list[View | str] = [view, str(count), str(width), str(pitch), places, str(index.shape[-1])]
    return made.call(f"gather_rows<{C_TYPES[value.dtype]}>", arguments, out, math.prod(index.shape))


def _bag(made: Lowering, given: Operands) -> Value:
    table, index, offsets = (given.value(name) for name in ("weight", "indices", "offsets"))
    mode = given.number("mode", 0)
    if mode not in (0, 1) or given.optional("per_sample_weights") is not None:
        raise UnsupportedError("a bag with weights, or of largest numbers")
    if given.number("padding_idx", -1) != -1 or given.number("include_last_offset", False):
        raise UnsupportedError("a bag with padding, or with a last offset")
    if index.dtype is not offsets.dtype or index.dtype not in (torch.int64, torch.int32):
        raise UnsupportedError("bags with indices of several types")
    if not table.dtype.is_floating_point or len(index.shape) != 1:
        raise UnsupportedError("a bag of another kind")
    view, places, starts = (made.place_contiguous(one) for one in (table, index, offsets))
    width, bags, taken = table.shape[1], offsets.shape[0], index.shape[0]
    out = made.allocate((bags, width), table.dtype)
    types = f"{C_TYPES[table.dtype]}, {C_TYPES[index.dtype]}"
    sizes = [str(one) for one in (table.shape[0], width, width)]
    arguments: list[View | str] = [
        view,
        *sizes,
        places,
        str(taken),
        starts,
        str(bags),
        "true" if mode == 1 else "false",
    ]
    done = made.call(f"bag_rows<{types}>", arguments, out, taken * width)
    return Value((), table.dtype, parts=(done,))


LOOKUPS: dict[str, Lower] = {
    **dict.fromkeys(("embedding", "index_select", "index"), _embedding),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _bag),
    "gather": _gather,
}
