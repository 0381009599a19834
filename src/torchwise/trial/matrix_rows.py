"""Whether a model multiplies its matrices by one row each, as the decoding step of a language model does."""

from __future__ import annotations

from typing import Any

import torch

MIN_ELEMENTS = 1 << 20
"""Elements of all matrices that meet a single row, from which that is a trait: 2 µs of reading on a fast GPU."""
_ATEN = torch.ops.aten
_FACTORS: dict[Any, int] = {_ATEN.mm: 0, _ATEN.bmm: 0, _ATEN.linear: 0, _ATEN.addmm: 1, _ATEN.convolution: 0}
"""The place of the first of the two factors among an operator's arguments. The kernel of a convolution is a matrix."""


class MatrixRows:
    """Counts the elements of matrices in products, apart for those that a single row meets."""

    def __init__(self) -> None:
        self._by_one_row = {True: 0, False: 0}

    def count(self, func: Any, args: tuple[Any, ...]) -> None:
        """Count the matrix of an operator that was called, if it is a product."""
        operator = getattr(func, "overloadpacket", None)
        first = _FACTORS.get(operator)
        factors = () if first is None else args[first : first + 2]
        if len(factors) == 2 and all(isinstance(one, torch.Tensor) for one in factors):
            rows, matrix = factors
            is_row = rows.shape[-2] == 1 if operator is _ATEN.bmm else rows.numel() == rows.shape[-1]
            self._by_one_row[is_row and operator is not _ATEN.convolution] += matrix.numel()

    @property
    def are_single(self) -> bool:
        """Whether most elements are of matrices that meet one row each, and these are many."""
        return self._by_one_row[True] >= max(self._by_one_row[False], MIN_ELEMENTS)
