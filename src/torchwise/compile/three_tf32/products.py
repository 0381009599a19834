"""Products of many rows with matrices whose two parts are computed once, and not by each program of a kernel.

Where Triton finds the parts of both sides, those of the columns pass through registers on their way to the tensor
cores. Here they are read straight from memory. On an H200 such a product was 1.2 to 1.4 times as fast, and 1.9 to 2.2
times as fast as cuBLAS. It is not compared with cuBLAS for each product, so it is for GPUs of that generation alone.

Compiled code computes the parts in each call, so weights may change. That is little work beside a product of many rows.
They lie in rows of whole vectors, with zeros at their ends. Concatenations get such zeros as well, as kernels read rows
that begin at odd addresses slowly. A bias, an activation and the like after a product are done by its own kernel, as
after each product of Inductor's.

A product with an infinite number is NaN: such a number has no second part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import resources
from typing import Any

import torch

from torchwise._torch import inductor
from torchwise._torch.private_name import check

WHO = "float32 products as three TF32 products"
NAME = "torchwise_three_tf32"
HOPPER = 9
"""The major compute capability on which these kernels were measured. Others are left to Inductor's own."""
LEAST_ROWS, LEAST_COLUMNS, LEAST_LENGTH = 2048, 64, 48
"""Fewer rows do not pay for the parts of the columns."""
LEAST_RESULTS = 2**20
"""Fewer do not keep a GPU busy."""
VECTOR, READ_AT_ONCE = 4, 16
"""Float32 numbers in a vector of 16 bytes, and in the 64 bytes at which padded rows begin."""
PADDED = "torchwise_padded"
"""The attribute of a concatenation of a graph that holds the same one with zeros at the ends of its rows."""
SUMMED = 32
"""Numbers of a row that tensor cores add at once. Rows of the parts are a multiple of it.

Tensor cores cut off what does not fit in a sum, and the error grows with its length. On an H200 a product of rows of
1,024 numbers had an error of 7.1e-6 where they added all of them, and 1.7e-7 by 32. cuBLAS in float32 had 2.4e-7.
"""
LOW_BITS, HALF = 0x1FFF, 0x1000
"""The bits of a float32 number that TF32 has not, and half of the last one that it has."""
TILES = ((64, 128, 4, 3), (128, 64, 4, 3), (128, 64, 4, 4), (128, 128, 8, 3), (64, 64, 4, 4))
"""Rows and columns of a tile, warps, and stages. The fastest for a product is found by trial."""
NEIGHBOURS = 8
"""Tiles of rows that are computed side by side, as they share columns."""
NEEDED = (
    inductor.LOWERINGS,
    inductor.COMPILED_NOW,
    inductor.STORAGE,
    inductor.POINTWISE,
    inductor.FIXED_LAYOUT,
    inductor.REALIZE_INPUTS,
    inductor.PRODUCT_GRID,
    inductor.SELECT_KERNEL,
    inductor.TEMPLATE,
)
aten = torch.ops.aten


def add_to_lowerings(is_configured: Callable[[], bool]) -> None:
    """Have Inductor multiply so where `is_configured()` and the product is a large one of float32 numbers.

    Raises:
        UnsupportedError: this torch lacks something that is needed.
    """
    check(WHO, NEEDED)
    _make_template()  # now, as nothing else adds to PyTorch meanwhile
    lowerings = inductor.LOWERINGS.get()
    lowerings[aten.mm.default] = _lower_mm(lowerings[aten.mm.default], is_configured)
    lowerings[aten.addmm.default] = _lower_addmm(lowerings[aten.addmm.default], is_configured)
    lowerings[aten.cat.default] = _lower_cat(lowerings[aten.cat.default], is_configured)


def _lower_mm(lower: Callable[..., Any], is_configured: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(lower)
    def lower_in_parts(rows: Any, columns: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not (is_configured() and is_suited(rows, columns)):
            return lower(rows, columns, *args, **kwargs)
        found = multiply(rows, columns)
        return lower(rows, columns) if found is None else found

    return lower_in_parts


def _lower_addmm(lower: Callable[..., Any], is_configured: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(lower)
    def lower_in_parts(added: Any, rows: Any, columns: Any, *args: Any, **kwargs: Any) -> Any:
        scales = {kwargs.get("alpha", 1), kwargs.get("beta", 1)}
        is_plain = not args and scales == {1} and kwargs.keys() <= {"alpha", "beta"}
        if not (is_plain and added.get_dtype() == torch.float32 and is_configured() and is_suited(rows, columns)):
            return lower(added, rows, columns, *args, **kwargs)
        found = multiply(rows, columns)
        return lower(added, rows, columns) if found is None else _lower(aten.add.Tensor, found, added)

    return lower_in_parts


def _lower_cat(lower: Callable[..., Any], is_configured: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(lower)
    def lower_padded(*args: Any, **kwargs: Any) -> Any:
        tensors, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0)
        if not (is_configured() and dim in (1, -1) and _is_for_products() and all(map(_is_matrix, tensors))):
            return lower(*args, **kwargs)
        rows, length = tensors[0].get_size()[0], sum(int(one.get_size()[1]) for one in tensors)
        more = _count_missing(length)
        if not more or rows < LEAST_ROWS or not _is_possible(tensors[0]):
            return lower(*args, **kwargs)
        filled = _lower(aten.full.default, [rows, more], 0.0, dtype=torch.float32, device=tensors[0].get_device())
        padded = lower([*tensors, filled], 1)
        found = _lower(aten.slice.Tensor, padded, 1, 0, length)
        setattr(found, PADDED, padded)
        return found

    return lower_padded


def _is_for_products() -> bool:
    """Return whether the operator that is lowered now is a concatenation of rows that are multiplied.

    Other concatenations may read it, too. For all else, such as an answer of the graph, it has the strides that it has
    without this.
    """
    node = inductor.COMPILED_NOW.get().graph.current_node
    if getattr(node, "target", None) is not aten.cat.default:
        return False
    rows = {aten.mm.default: 0, aten.addmm.default: 1}
    others = [user for user in node.users if user.target is not aten.cat.default]
    return bool(others) and all(
        user.target in rows and [place for place, one in enumerate(user.args) if one is node] == [rows[user.target]]
        for user in others
    )


def _is_matrix(tensor: Any) -> bool:
    """Return whether a tensor is a matrix of float32 numbers whose sizes are known."""
    sizes = tensor.get_size()
    is_known = all(isinstance(size, int) or getattr(size, "is_Integer", False) for size in sizes)
    return len(sizes) == 2 and is_known and tensor.get_dtype() == torch.float32


def _count_missing(length: int) -> int:
    """Return the zeros that rows lack to begin at addresses from which whole vectors are read."""
    return -length % READ_AT_ONCE if length % VECTOR else 0


def is_suited(rows: Any, columns: Any) -> bool:
    """Return whether a product of two tensors of a graph is one of these."""
    if not (_is_matrix(rows) and _is_matrix(columns) and _is_possible(rows)):
        return False
    m, k, n = (int(size) for size in (*rows.get_size(), columns.get_size()[1]))
    return m >= LEAST_ROWS and n >= LEAST_COLUMNS and k >= LEAST_LENGTH and m * n >= LEAST_RESULTS


def _is_possible(tensor: Any) -> bool:
    """Return whether a tensor is on such a GPU, and the program does not allow TF32, of which one product is faster."""
    device = tensor.get_device()
    if device.type != "cuda" or torch.version.hip or torch.backends.cuda.matmul.fp32_precision == "tf32":
        return False
    return torch.cuda.get_device_capability(device)[0] == HOPPER


def multiply(rows: Any, columns: Any) -> Any:
    """Return the product of two tensors of a graph, or None if PyTorch takes none of these kernels for it."""
    layout = inductor.FIXED_LAYOUT.get()(rows.get_device(), torch.float32, [rows.get_size()[0], columns.get_size()[1]])
    tensors = tuple(inductor.REALIZE_INPUTS.get()(pad_rows(rows), *split(columns)))
    for one in tensors:
        one.freeze_layout()  # as the kernel reads them: Inductor may still choose another for what is not written yet
    return _select(tensors, layout)


def _select(tensors: tuple[Any, ...], layout: Any) -> Any:
    """Return the product of rows with two parts of columns, by the kernel that is the fastest for it, or None."""
    kernels: list[Any] = []
    for tile_m, tile_n, warps, stages in TILES:
        _make_template().maybe_append_choice(
            kernels,
            input_nodes=tensors,
            layout=layout,
            num_warps=warps,
            num_stages=stages,
            BLOCK_M=tile_m,
            BLOCK_N=tile_n,
            BLOCK_K=SUMMED,
            GROUP_M=NEIGHBOURS,
            EVEN_K=int(tensors[0].get_size()[1]) % SUMMED == 0,
            HALF=HALF,
            KEPT=~LOW_BITS,
        )
    if not kernels:
        return None
    # Kernels that are chosen after what follows them is known need one of a library among them, to fall back to.
    found = inductor.SELECT_KERNEL.get()(NAME, kernels, list(tensors), layout, return_multi_template=False)
    return found[0] if isinstance(found, tuple) else found  # since torch 2.13 with what was picked


@functools.cache
def _make_template() -> Any:
    text = resources.files(__package__).joinpath("product.jinja").read_text()
    return inductor.TEMPLATE.get()(name=NAME, grid=inductor.PRODUCT_GRID.get(), source=text)


def split(columns: Any) -> tuple[Any, Any]:
    """Return the parts of columns as rows: those with the bits of TF32 alone, rounded, and the rest."""
    rows = _lower(aten.permute.default, columns, [1, 0])
    rows = _pad(rows, -int(rows.get_size()[1]) % SUMMED)
    bits = _lower(aten.add.Tensor, _lower(aten.view.dtype, rows, torch.int32), HALF)
    big = _lower(aten.view.dtype, _lower(aten.bitwise_and.Scalar, bits, ~LOW_BITS), torch.float32)
    return big, _lower(aten.sub.Tensor, rows, big)


def pad_rows(rows: Any) -> Any:
    """Return rows that begin at such addresses, if that costs no pass over them. Zeros may be at their ends."""
    if (padded := getattr(rows, PADDED, None)) is not None:
        return padded
    return rows if _is_in_memory(rows) else _pad(rows, _count_missing(int(rows.get_size()[1])))


def _is_in_memory(tensor: Any) -> bool:
    storage = inductor.STORAGE.get()
    inner = tensor.data
    while inner is not None and not isinstance(inner, storage):
        inner = getattr(inner, "data", None)  # of a view
    return inner is None or not isinstance(inner.data, inductor.POINTWISE.get())


def _pad(rows: Any, more: int) -> Any:
    return _lower(aten.constant_pad_nd.default, rows, [0, more], 0.0) if more else rows


def _lower(operator: Any, *args: Any, **kwargs: Any) -> Any:
    return inductor.LOWERINGS.get()[operator](*args, **kwargs)
