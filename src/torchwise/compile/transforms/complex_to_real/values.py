"""Complex values as two real parts, with exact zeros known: a real number costs no imaginary arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchwise.errors import UnsupportedError

Part = torch.Tensor | float
"""A real tensor, or a number that is known while rewriting. 0.0 is an exact zero and is never computed with."""

REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The complex dtypes that are rewritten, with the dtype of their parts. complex32 is left as it is."""


def is_complex(value: Any) -> bool:
    """Whether `value` is a tensor of a complex dtype that is rewritten."""
    return isinstance(value, torch.Tensor) and value.dtype in REAL


@dataclass(frozen=True, eq=False)
class Pair:
    """z = re + i·im, with complex arithmetic. If a part is exactly zero, its products are left out.

    So 0 · inf and 0 · nan are 0 here if a part is zero by construction (a real operand, a factor 1j). The sign of a
    zero may differ from eager's. Everything else follows the formulas as they stand.

    Attributes:
        re: the real part.
        im: the imaginary part, of the same shape and dtype if both are tensors.
        whole: (..., 2), both parts interleaved in memory, if the value exists in that form.
    """

    re: Part
    im: Part
    whole: torch.Tensor | None = None

    @classmethod
    def from_interleaved(cls, whole: torch.Tensor) -> Pair:
        """Read a pair from (..., 2)."""
        return cls(whole.select(-1, 0), whole.select(-1, 1), whole)

    def __add__(self, other: Pair) -> Pair:
        """(a + c) + i (b + d)."""
        return Pair(plus(self.re, other.re), plus(self.im, other.im))

    def __sub__(self, other: Pair) -> Pair:
        """(a − c) + i (b − d)."""
        return Pair(minus(self.re, other.re), minus(self.im, other.im))

    def __mul__(self, other: Pair) -> Pair:
        """(ac − bd) + i (ad + bc), as ATen multiplies."""
        real = minus(times(self.re, other.re), times(self.im, other.im))
        return Pair(real, plus(times(self.re, other.im), times(self.im, other.re)))

    def __neg__(self) -> Pair:
        """−a − i b."""
        return Pair(times(-1.0, self.re), times(-1.0, self.im))

    def conj(self) -> Pair:
        """a − i b."""
        return Pair(self.re, times(-1.0, self.im))

    def times_i(self) -> Pair:
        """i z = −b + i a."""
        return Pair(times(-1.0, self.im), self.re)

    def scale_by(self, factor: Part) -> Pair:
        """z times a real number or tensor."""
        return Pair(times(self.re, factor), times(self.im, factor))

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both parts as tensors of one shape, at least one of them being a tensor already."""
        like = self.re if isinstance(self.re, torch.Tensor) else self.im
        if not isinstance(like, torch.Tensor):
            raise UnsupportedError("a complex number is used where a tensor is expected")
        re, im = (p if isinstance(p, torch.Tensor) else torch.full_like(like, p) for p in (self.re, self.im))
        return re, im


def plus(x: Part, y: Part) -> Part:
    """x + y."""
    return y if _is(x, 0.0) else x if _is(y, 0.0) else x + y


def minus(x: Part, y: Part) -> Part:
    """x − y."""
    return times(-1.0, y) if _is(x, 0.0) else x if _is(y, 0.0) else x - y


def times(x: Part, y: Part) -> Part:
    """x · y, without a multiplication by 0, 1 and −1."""
    for factor, other in ((x, y), (y, x)):
        if _is(factor, 0.0):
            return 0.0
        if _is(factor, 1.0):
            return other
        if _is(factor, -1.0):
            return -other
    return x * y


def _is(part: Part, number: float) -> bool:
    return not isinstance(part, torch.Tensor) and part == number


def lift(value: Any, dtype: torch.dtype | None = None) -> Pair:
    """Return a number, a real tensor or a pair as a pair, its parts converted to the real `dtype`."""
    if isinstance(value, Pair):
        return Pair(_to(value.re, dtype), _to(value.im, dtype), value.whole if dtype is None else None)
    if isinstance(value, torch.Tensor):
        return Pair(_to(value, dtype), 0.0)
    number = complex(value)
    return Pair(number.real, number.imag)


def _to(part: Part, dtype: torch.dtype | None) -> Part:
    return part if dtype is None or not isinstance(part, torch.Tensor) else part.to(dtype)
