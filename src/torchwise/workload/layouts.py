"""Tensors of other layouts (sparse, nested, quantized), by the strided tensors that they consist of."""

from __future__ import annotations

import torch


def is_strided(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary tensor: numbers in memory, found by strides."""
    plain = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    return plain and not _is_packed(tensor)


def _is_packed(tensor: torch.Tensor) -> bool:
    """Whether an element holds several numbers, for which PyTorch has next to no operators."""
    return str(tensor.dtype).endswith("_x2")


def layout_of(tensor: torch.Tensor) -> str:
    """Name a tensor's layout, with the facts that its strided parts do not show."""
    name = str(tensor.layout).removeprefix("torch.").removeprefix("_")
    if tensor.is_nested:
        return "nested"
    name = str(tensor.qscheme()) if tensor.is_quantized else str(tensor.dtype) if _is_packed(tensor) else name
    return f"{name}{list(tensor.shape)}"


def list_strided_parts(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """List the strided tensors that make up a tensor, by name. An ordinary tensor is its own only part, named "".

    If it requires a gradient, so do the parts that hold its numbers. They share its memory if that is possible.
    """
    if is_strided(tensor):
        return [("", tensor)]
    if _is_packed(tensor):
        return [(".view(torch.uint8)", tensor.view(torch.uint8))]
    if tensor.is_nested:
        return [(f"[{position}]", row) for position, row in enumerate(tensor.unbind())]
    if tensor.is_quantized:
        return [(".int_repr()", tensor.int_repr()), (".dequantize()", tensor.dequantize())]
    names = {
        torch.sparse_coo: ("indices", "values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
        torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    }.get(tensor.layout)
    if names is None:  # such as MKL-DNN's own
        return [(".to_dense()", tensor.to_dense())]
    given = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
    return [(f".{name}()", getattr(given, name)()) for name in names]


def size_of(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor takes, its indices included."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    return sum(part.nbytes for _, part in list_strided_parts(tensor))
