"""Compare the size of each gradient along the reference's: rounding moves it at random, and a wrong factor does not."""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch

from torchwise.records import Check, CheckName, Figure, Outcome
from torchwise.verify.deviation import errors_of

SCALE = 2e-3
"""Relative error of a gradient's scale that is granted at any precision."""
MAX_ROUNDING = 0.5
"""Relative error of eager's gradient at the candidate's precision from which there is no scale to compare."""
TINY = 2.0**-24
"""Least rounding of a gradient that is reckoned with."""


class GradientScales:
    """The size of each gradient along the reference's: rounding moves it at random, and a wrong factor does not.

    Some numbers affect everything, such as a loss. A rounding of them moves all gradients of a step alike, and far:
    15 % were measured under bfloat16. So the median of all gradients is judged by the variation of eager's from
    step to step. Each gradient is then compared with the median. There the roundings of its elements average out, the
    better the more there are. Eager's worst may exceed that noise, and the candidate's may then exceed it as far. Over
    several draws the median one counts. A gradient that is mostly rounding, as when the true one is zero, has no scale.
    """

    def __init__(self) -> None:
        self._draws: list[dict[str, tuple[float, float, float]]] = []

    def add(self, candidate: dict[str, Any], floor: dict[str, Any], reference: dict[str, Any]) -> None:
        """Add the gradients of one draw of the batch."""
        draw = {}
        for name, exact in reference.items():
            if exact is None or exact.dim() == 0 or not 0 < float(exact.double().square().sum()) < math.inf:
                continue
            if not is_rounding(floor[name], exact):
                noise = errors_of(floor[name], exact).rms / max(exact.shape) ** 0.5
                draw[name] = projection_ratio(candidate[name], exact), projection_ratio(floor[name], exact), noise
        if draw:
            self._draws.append(draw)

    def check(self) -> Check:
        """Judge all draws together."""
        middles = [[statistics.median(column) for column in zip(*draw.values(), strict=True)] for draw in self._draws]
        shared = statistics.median(middle[0] for middle in middles) if middles else 1.0
        usual = math.sqrt(statistics.fmean((middle[1] - 1) ** 2 for middle in middles)) if middles else 0.0
        limit = max(SCALE, 4 * usual)
        if not abs(shared - 1) <= limit:
            detail = f"gradients are {shared:.4f} times as large as the reference's, eager's off by {usual:.4f}"
            return Check(
                CheckName.GRADIENT_SCALE, Outcome.FAIL, detail, abs(shared - 1), usual, figures={Figure.LIMIT: limit}
            )
        offsets: dict[str, list[tuple[float, float, float]]] = {}
        for draw, (candidate_middle, eager_middle, _) in zip(self._draws, middles, strict=True):
            for name, (candidate, eager, noise) in draw.items():
                offsets.setdefault(name, []).append((candidate - candidate_middle, eager - eager_middle, noise))
        return self._compare_with_median(offsets, abs(shared - 1))

    @staticmethod
    def _compare_with_median(offsets: dict[str, list[tuple[float, float, float]]], worst: float) -> Check:
        found = {}
        for name, draws in offsets.items():
            candidate, eager, noise = (statistics.median(column) for column in zip(*draws, strict=True))
            found[name] = candidate, eager, max(noise, TINY) / len(draws) ** 0.5
        times = max((abs(eager) / noise for _, eager, noise in found.values()), default=1.0)
        for name, (candidate, eager, noise) in found.items():
            limit = max(SCALE, max(4.0, 2 * times) * noise)
            if not abs(candidate) <= limit:
                detail = (
                    f"{name} is {1 + candidate:.4f} times as large as the reference's, eager's off by {abs(eager):.4f}"
                )
                figures = {Figure.LIMIT: limit}
                return Check(
                    CheckName.GRADIENT_SCALE, Outcome.FAIL, detail, abs(candidate), abs(eager), figures=figures
                )
            worst = max(worst, abs(candidate))
        return Check(
            CheckName.GRADIENT_SCALE, Outcome.PASS, f"each is as large as the reference's, to {worst:.2g}", worst
        )


def is_rounding(floor: Any, exact: Any) -> bool:
    """Whether a gradient is rounding for the most part in eager: the true one is zero, as behind a normalisation."""
    is_one = isinstance(exact, torch.Tensor) and isinstance(floor, torch.Tensor) and exact.dim() > 0
    return is_one and errors_of(floor, exact).rms >= MAX_ROUNDING


def projection_ratio(tensor: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the size of a tensor along another, which is 1 if they agree."""
    from torchwise.verify.reference import widen_tensor

    direction, value = widen_tensor(exact).flatten(), widen_tensor(tensor).flatten().to(exact.device)
    return float((value * direction.conj()).sum().real / direction.abs().square().sum())
