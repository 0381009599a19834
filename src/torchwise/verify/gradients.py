"""Compare gradients of single steps over several draws of the batch with float64.

Some models make decisions: where to look closely, or on which side of a kink an activation lies. Once in a while a
rounding changes such a decision. A whole gradient is then off by far more than usual, eager's as often as a
candidate's, on other draws. So the draws are judged together: the typical error is compared with eager's typical one,
and the worst with eager's worst. More draws settle the cases that a few leave open.

The size of each gradient along the reference's is compared as well: rounding moves it at random, and a wrong factor
does not.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchwise.records import Check, CheckCause, CheckName, Figure, Outcome
from torchwise.verify.compare import check_structure
from torchwise.verify.deviation import (
    RMS_FACTOR,
    WORST_FACTOR,
    Errors,
    errors_of,
    finiteness_problem,
    problem_of,
    projection_ratio,
)
from torchwise.verify.noise_floor import Bounds, NoiseFloor, Sensitivity
from torchwise.verify.observe import Observation

NEGLIGIBLE = 1e-5
"""Size, relative to the whole gradient, up to which a gradient that is all rounding in eager may be any rounding."""
MAX_EXAMINED = 3
"""Draws on which eager's error of a gradient is examined: is it rounding?"""
IDLE = (
    ": a compiled model gives zeros to weights that the loss does not use, and weight decay then acts on them; with "
    "scope 'loss' it does not"
)


@dataclass(slots=True)
class _GradientErrors:
    """One gradient on all draws: the error granted in any case, the candidate's errors, and eager's.

    `void` has the reasons why eager's errors are no noise floor, for the draws that were examined. It gets no more
    entries once they are one.
    """

    granted: float
    candidate: list[Errors] = field(default_factory=list)
    usual: list[Errors] = field(default_factory=list)
    void: list[str | None] = field(default_factory=list)

    def find_excess(self, of: Callable[[Iterable[float]], float]) -> tuple[float, float] | None:
        """Return the candidate's and eager's error (root mean square) if the candidate's is too large."""
        candidate, usual = (of(one.rms for one in side) for side in (self.candidate, self.usual))
        return None if candidate <= RMS_FACTOR * usual + self.granted else (candidate, usual)

    def find_excess_in_worst(self) -> tuple[float, float] | None:
        candidate, usual = (max(one.worst for one in side) for side in (self.candidate, self.usual))
        return None if candidate <= WORST_FACTOR * (usual + self.granted) else (candidate, usual)

    @property
    def is_open_to_doubt(self) -> bool:
        return len(self.void) < MAX_EXAMINED and None not in self.void

    @property
    def why_void(self) -> str | None:
        """Why eager's errors are no noise floor, if that holds on every draw examined, and on most of all draws."""
        return (
            self.void[0]
            if self.void and None not in self.void and 2 * len(self.void) > min(len(self.usual), 3)
            else None
        )

    @property
    def is_off_always(self) -> bool:
        """Whether the candidate is too far off on every draw, even compared with eager's worst."""
        return min(one.rms for one in self.candidate) > RMS_FACTOR * max(one.rms for one in self.usual) + self.granted


class Gradients:
    """Gathers losses and gradients, draw by draw, and judges them. `epsilon` is as for `compare`."""

    def __init__(self, epsilon: float | None) -> None:
        self._epsilon = epsilon
        self._seen: dict[str, _GradientErrors] = {}
        self._scales = GradientScales()
        self._problem: Check | None = None
        self._rounding = Counter[str]()
        self._draws = 0

    def add(
        self,
        candidate: Observation,
        native: Observation,
        floor: Observation,
        reference: Observation | None,
        moved: Sensitivity | None = None,
    ) -> None:
        """Add a draw: the observations as for `compare.Sides`, and how far rounding moves eager's."""
        structure = check_structure(candidate, native)
        if structure.outcome is not Outcome.PASS:
            hint = IDLE if structure.cause == CheckCause.NONE_IN_EAGER else ""
            self._problem = replace(structure, name=CheckName.GRADIENT_STRUCTURE, detail=structure.detail + hint)
            return
        usual, exact = dict(floor.leaves), dict((reference or native).leaves)
        rounding = {name for name, leaf in exact.items() if is_rounding(usual.get(name), leaf)}
        self._rounding.update(rounding)
        self._draws += 1
        for name, leaf in _replace_roundings(candidate, usual, exact, rounding).leaves:
            if (true := exact[name]) is not None:
                bounds = Bounds.from_tensor(leaf, self._epsilon, has_reference=reference is not None)
                self._compare(NoiseFloor(name, true, bounds, moved or Sensitivity()), leaf, usual[name])
        self._scales.add(dict(candidate.leaves), usual, exact)

    def _compare(self, noise: NoiseFloor, candidate: Any, floor: Any) -> None:
        name, exact, bounds = noise.name, noise.exact, noise.bounds
        if problem := finiteness_problem(candidate, floor, exact):
            detail, cause = f"{name} {problem}", CheckCause.NOT_FINITE
            self._problem = Check(CheckName.GRADIENTS, Outcome.FAIL, detail, cause=cause)
        record = self._seen.setdefault(name, _GradientErrors(bounds.granted))
        errors, usual = errors_of(candidate, exact), errors_of(floor, exact)
        if bounds.is_own and problem_of(candidate, errors, usual, bounds.granted):
            usual = usual.or_larger(noise.moved.measure_rounding_move(name, exact))
        is_doubtful = usual.rms > bounds.plausible or problem_of(candidate, errors, usual, bounds.granted)
        if is_doubtful and record.is_open_to_doubt:
            record.void.append(noise.why_in_doubt(candidate, floor, errors, usual))
        record.candidate.append(errors)
        record.usual.append(usual)

    def checks(self) -> list[Check]:
        """Judge all draws together. The last check is the one that fails, if any does."""
        if self._problem:
            return [self._problem]
        values = self._values()
        return [values] if values.outcome is not Outcome.PASS else [values, self._scales.check()]

    @property
    def is_open(self) -> bool:
        """Whether the candidate fails, but further draws might show that eager does the same."""
        fails = self.checks()[-1].outcome is Outcome.FAIL
        return fails and self._problem is None and not any(record.is_off_always for record in self._seen.values())

    @property
    def rounding(self) -> set[str]:
        """Names of the gradients that are nothing but rounding in eager, on most draws."""
        return {name for name, times in self._rounding.items() if 2 * times > self._draws}

    @property
    def decides(self) -> bool:
        """Whether eager's own errors differ from draw to draw as those of a model that decides something do."""
        errors = [[one.rms for one in record.usual] for record in self._seen.values()]
        return statistics.median(max(e) / max(min(e), TINY) for e in errors) > RMS_FACTOR if errors else False

    def _values(self) -> Check:
        for name, record in self._seen.items():
            if record.why_void:
                continue
            for found, where in (
                (record.find_excess(statistics.median), "(root mean square)"),
                (record.find_excess(max), "(root mean square) on its worst draw"),
                (record.find_excess_in_worst(), "in its worst element"),
            ):
                if found:
                    detail = f"{name} is off by {found[0]:.2g} {where}, eager by {found[1]:.2g}"
                    return Check(
                        CheckName.GRADIENTS,
                        Outcome.FAIL,
                        detail,
                        *found,
                        figures={Figure.SAMPLES: len(record.candidate)},
                    )
        for name, record in self._seen.items():
            if why := record.why_void:
                errors = record.candidate[0].rms, record.usual[0].rms
                return Check(CheckName.GRADIENTS, Outcome.NOT_COMPARABLE, f"{name} {why}", *errors)
        telling = [record for record in self._seen.values() if max(one.rms for one in record.usual) < MAX_ROUNDING]
        worst = max(telling or self._seen.values(), key=lambda record: max(one.rms for one in record.candidate))
        candidate, usual = (max(one.rms for one in side) for side in (worst.candidate, worst.usual))
        drawn = len(worst.candidate)
        detail = (
            f"{len(self._seen)} values are off by {candidate:.2g} at most over {drawn} draws, eager's by {usual:.2g}"
        )
        figures = {Figure.LIMIT: RMS_FACTOR * usual + worst.granted, Figure.SAMPLES: drawn}
        return Check(CheckName.GRADIENTS, Outcome.PASS, detail, candidate, usual, figures=figures)


def _replace_roundings(
    candidate: Observation, floor: dict[str, Any], reference: dict[str, Any], names: set[str]
) -> Observation:
    """Replace the candidate's roundings by eager's if they are negligible relative to the gradient as a whole.

    If a sum should be zero, the size of its roundings is chance, and no fault of a candidate.
    """
    gradients = [t for t in reference.values() if isinstance(t, torch.Tensor) and t.dim() > 0]
    squares, count = sum(float(t.double().square().sum()) for t in gradients), sum(t.numel() for t in gradients)
    whole = math.sqrt(squares / max(count, 1))

    def replace_leaf(name: str, leaf: Any) -> Any:
        if name not in names or not isinstance(leaf, torch.Tensor) or leaf.shape != reference[name].shape:
            return leaf
        size = float(leaf.double().square().mean().sqrt())
        return floor[name].to(leaf.dtype) if size <= NEGLIGIBLE * whole else leaf

    return replace(candidate, leaves=tuple((name, replace_leaf(name, leaf)) for name, leaf in candidate.leaves))


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
