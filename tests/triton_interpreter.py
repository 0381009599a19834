"""Triton's interpreter, which runs kernels on a CPU. Here it gets functions of libraries, and truth values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

FUNCTIONS = {
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "cosh": np.cosh,
    "expm1": np.expm1,
    "hypot": np.hypot,
    "log10": np.log10,
    "log1p": np.log1p,
    "pow": np.power,
    "rint": np.rint,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}


def add_functions(patch: pytest.MonkeyPatch) -> None:
    """Have the interpreter compute the functions of a GPU's library by NumPy, and know that comparisons are boolean."""
    from triton.language import core  # after the tests have chosen the interpreter
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    binary_op = InterpreterBuilder.binary_op

    def tell_boolean(self: Any, first: Any, second: Any, operator: Callable[..., Any]) -> Any:
        found = binary_op(self, first, second, operator)
        return TensorHandle(found.data, core.int1) if found.data.dtype == np.bool_ else found

    patch.setattr(InterpreterBuilder, "binary_op", tell_boolean)

    for name, function in FUNCTIONS.items():
        patch.setattr(libdevice, name, _wrap(function))


def _wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    from triton.language import core
    from triton.runtime.interpreter import TensorHandle

    def call(*given: Any) -> Any:
        kind = {"fp32": np.float32, "fp64": np.float64}[str(given[0].dtype)]
        found = function(*(one.handle.data.astype(kind) for one in given)).astype(kind)
        kinds = [one.type for one in given if one.type.is_block()]
        made = core.block_type(given[0].dtype, list(found.shape)) if kinds else given[0].type
        return core.tensor(TensorHandle(found, given[0].dtype.scalar), made)

    return call
