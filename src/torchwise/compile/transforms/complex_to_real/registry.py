"""The table of rules, by the operator that they rewrite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from torchwise.compile.transforms.complex_to_real.values import REAL, Pair

Rule = Callable[..., Any]
"""`(want, *args, **kwargs)`, with complex arguments as pairs → a pair, a real tensor, or a tuple of such."""


class NotCoveredError(Exception):
    """A rule does not hold for these arguments: the operator runs as it is, between composing and splitting."""


@dataclass(frozen=True, eq=False)
class ExpectedResult:
    """The result of the operator in eager.

    Attributes:
        target: the overload that is rewritten.
        shape: the shape of its (first) result.
        dtype: the dtype of that result.
        device: the device of that result.
    """

    target: Any
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    def real(self) -> torch.dtype:
        """The dtype of the parts of a complex result, or a real result's own dtype."""
        return REAL.get(self.dtype, self.dtype)

    def full(self, value: float) -> torch.Tensor:
        """Return a real tensor of the result's shape."""
        return torch.full(self.shape, value, dtype=self.real, device=self.device)

    def settle(self, result: Pair) -> Pair:
        """Bring parts to the result's shape and dtype. An exact zero stays a number next to a tensor."""
        re, im = (self._settle_part(part) for part in (result.re, result.im))
        if not isinstance(re, torch.Tensor) and not isinstance(im, torch.Tensor):
            re = self.full(0.0)
        unmoved = re is result.re and im is result.im
        return Pair(re, im, result.whole if unmoved else None)

    def _settle_part(self, part: torch.Tensor | float) -> torch.Tensor | float:
        if not isinstance(part, torch.Tensor):
            return self.full(part) if part != 0.0 else 0.0
        part = part if part.dtype == self.real else part.to(self.real)
        return part if part.shape == self.shape else part.expand(self.shape)


Function = TypeVar("Function", bound=Rule)

RULES: dict[Any, Rule] = {}
"""Rules by operator (`torch.ops.aten.mul`, for all its overloads)."""

ARITHMETIC: set[Any] = set()
"""The operators for which rewriting pays: they compute, and others only move numbers."""


def rule(*operators: Any, computes: bool = True) -> Callable[[Function], Function]:
    """Register a rule for operators. `computes` says whether rewriting them alone pays."""

    def register(function: Function) -> Function:
        for operator in operators:
            RULES[operator] = function
            if computes:
                ARITHMETIC.add(operator)
        return function

    return register
