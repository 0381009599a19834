"""Decide whether eager can be the noise floor of a candidate: rounding has to explain its error.

A candidate is granted several times eager's own error. That is right if rounding causes it. Any other cause would let
wrong answers pass: a wrong float64 reference, a wrong kernel, or state that a call leaves behind. So would rounding
that moves answers as far as anything could, as in chaos. So a large error is compared with the moves of eager under
perturbed roundings (`perturbation`). Unless those explain it, and much coarser ones would be noticed, nothing can be
compared.

If nothing is more precise than eager, as for a model in float64, its own error is its move under perturbed roundings.
So it is if an answer has a few numbers alone, such as a loss, and eager is nearer by chance than its roundings allow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from torchwise.records import CheckCause, Outcome
from torchwise.verify.deviation import (
    RMS_FACTOR,
    WORST_FACTOR,
    Errors,
    errors_of,
    finiteness_problem,
    is_rounded,
    limit_of,
    median_error,
    most_flipped,
    problem_of,
    scale_of,
    tolerance_of,
)
from torchwise.verify.perturbation import PerturbRounding

RUNS = 3
"""Perturbed runs of each kind at most."""
EXPLAINED = 16.0
"""Maximum error of eager as a multiple of its move under perturbed roundings: an operator may round many times inside.
"""
COARSE = 128.0
"""Roundings at once that have to be noticed. Otherwise the noise floor is too high, and wrong answers pass."""
NOTICED_IN_THE_MIDDLE = 16.0
"""Multiple of eager's error in the middle element that is noticed if a few elements decide otherwise."""
FLIPPED = 0.05
"""Share of whole numbers and booleans in which eager may differ from the reference without being examined."""
FEW = 16
"""Numbers of an answer up to which eager's error may be far below that of the next run with other inputs."""
BLIND = 0.25
"""Eager's error from which an answer of zeros would pass if there are no perturbed runs."""

PLAIN = (bool, int, float, str, tuple)
"""Leaves that are no tensors, and are equal or not."""

Run = Callable[[AbstractContextManager[Any]], Mapping[str, Any]]
"""Runs eager inside a context, from one state. Returns its leaves by name."""


@dataclass(frozen=True, slots=True)
class Move:
    """How far a tensor moved: as errors are counted, and in its middle element."""

    errors: Errors
    middle: float


class Sensitivity:
    """How far eager moves when its roundings are perturbed. It is measured on demand.

    `run` runs eager at the candidate's precision, each time from the same state. It is None if that is impossible.
    """

    def __init__(self, run: Run | None = None) -> None:
        self.is_known = run is not None
        self._run = run
        self._base: Mapping[str, Any] | None = None
        self._moves: dict[tuple[float, int], dict[str, Move] | None] = {}

    def move(self, name: str, roundings: float, run: int, scale: float) -> Move | None:
        """Return how far a tensor moves in one run, or None if eager cannot run so, or has another form then.

        Args:
            name: the tensor's name.
            roundings: by how much each rounding is perturbed. 0 shows whether eager answers the same again.
            run: the run's number, from 1.
            scale: the size that moves are relative to, unless they are shares.
        """
        found = (self._measure_moves(roundings, run) or {}).get(name)
        if found is None or self._base is None:
            return None
        if not _is_rounded(self._base[name]):
            return found
        return Move(Errors(found.errors.rms / scale, found.errors.worst / scale), found.middle / scale)

    def measure_rounding_move(self, name: str, exact: torch.Tensor) -> Errors:
        """Return the farthest move of a tensor by single roundings, or zero if eager cannot run so."""
        found = (self.move(name, 1.0, run, scale_of(exact)) for run in range(1, RUNS + 1))
        return functools.reduce(Errors.or_larger, (move.errors for move in found if move), Errors(0.0, 0.0))

    def is_decided_by_rounding(self, name: str) -> bool:
        """Whether a leaf that is no number of a tensor, such as a count, changes under single roundings."""
        found = (self.move(name, 1.0, run, 1.0) for run in range(1, RUNS + 1))
        return any(move.errors.rms > 0 for move in found if move)

    def _measure_moves(self, roundings: float, run: int) -> dict[str, Move] | None:
        key = roundings, run
        if self._run is None:
            return None
        if key not in self._moves:
            try:
                self._base = self._base or self._run(PerturbRounding(0.0))
                self._moves[key] = _moves(self._base, self._run(PerturbRounding(roundings, run)))
            except Exception:  # eager runs as it is, but inside our mode it may raise anything
                self._moves[key] = None
        return self._moves[key]


def _moves(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Move]:
    found = {}
    for name, one in before.items():
        other = after.get(name)
        if isinstance(one, PLAIN):
            found[name] = Move(Errors(float(one != other), 0.0), 0.0)
        elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape:
            middle = median_error(other, one, 1.0) if is_rounded(one) else 0.0
            found[name] = Move(errors_of(other, one, 1.0), middle)
    return found


def _is_rounded(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and is_rounded(leaf)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds that a tensor is judged by, in addition to eager's error.

    Attributes:
        granted: relative error that it may have in any case.
        plausible: eager's error up to which it is not examined.
        is_own: whether eager is its own reference, so that its error is unknown and not zero. It is never so if a
            rounding is so coarse that several would let much pass.
    """

    granted: float
    plausible: float
    is_own: bool

    @classmethod
    def from_tensor(cls, leaf: torch.Tensor, epsilon: float | None, *, has_reference: bool) -> Bounds:
        """Return the bounds of a tensor. `epsilon` is as for `compare`."""
        granted = tolerance_of(leaf, epsilon, has_reference=has_reference)
        if not is_rounded(leaf):
            return cls(granted, FLIPPED, is_own=False)
        plausible = tolerance_of(leaf, epsilon, has_reference=False)
        precise = torch.float64, torch.complex128
        own = precise if has_reference else (*precise, torch.float32, torch.complex64)
        return cls(granted, plausible, is_own=epsilon is None and leaf.dtype in own)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of one tensor: in words, with the candidate's errors, eager's, and the limit of the former."""

    outcome: Outcome
    detail: str
    errors: Errors
    usual: Errors
    limit: float
    cause: CheckCause | None = None


class _Doubt(NamedTuple):
    """Why a tensor cannot be judged."""

    why: str
    cause: CheckCause | None = None


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Eager's error as the noise floor of one tensor. It is examined only in case of doubt.

    Attributes:
        name: the tensor's name.
        exact: the reference's tensor.
        bounds: the bounds to judge by.
        moved: how far eager at the candidate's precision moves by rounding.
    """

    name: str
    exact: torch.Tensor
    bounds: Bounds
    moved: Sensitivity

    def judge(self, candidate: torch.Tensor, floor: torch.Tensor) -> Judgement:
        """Judge a candidate's tensor by eager's at its precision."""
        granted = self.bounds.granted
        errors, usual = errors_of(candidate, self.exact), errors_of(floor, self.exact)
        if problem := finiteness_problem(candidate, floor, self.exact):
            limit = limit_of(candidate, usual, granted)
            return Judgement(Outcome.FAIL, problem, Errors(1.0, 1.0), usual, limit, CheckCause.NOT_FINITE)
        problem = problem_of(candidate, errors, usual, granted)
        # A few roundings may happen to cancel out. Then the candidate's error is near, or no luck explains it.
        may_be_lucky = candidate.numel() <= FEW and errors.rms <= self.bounds.plausible
        if problem and (self.bounds.is_own or may_be_lucky):
            usual = usual.or_larger(self.moved.measure_rounding_move(self.name, self.exact))
            problem = problem_of(candidate, errors, usual, granted)
        limit = limit_of(candidate, usual, granted)
        if doubt := self._find_doubt(candidate, floor, errors, usual):
            return Judgement(Outcome.NOT_COMPARABLE, doubt.why, errors, usual, limit, doubt.cause)
        return Judgement(Outcome.FAIL if problem else Outcome.PASS, problem or "", errors, usual, limit)

    def why_in_doubt(self, candidate: torch.Tensor, floor: torch.Tensor, errors: Errors, usual: Errors) -> str | None:
        """Say why a candidate's tensor with these errors cannot be judged, or return None if it can."""
        doubt = self._find_doubt(candidate, floor, errors, usual)
        return None if doubt is None else doubt.why

    def _find_doubt(self, candidate: torch.Tensor, floor: torch.Tensor, errors: Errors, usual: Errors) -> _Doubt | None:
        if usual.rms > self.bounds.plausible and not self._is_near(candidate, floor):
            if why := self.why_unexplained(usual):
                return _Doubt(why)
            blind = self._why_blind(floor, usual)
            return None if blind is None else _Doubt(blind, CheckCause.HIDDEN_BY_ROUNDING)
        why = self.why_unsteady(errors) if problem_of(candidate, errors, usual, self.bounds.granted) else None
        return None if why is None else _Doubt(why)

    def _is_near(self, candidate: torch.Tensor, floor: torch.Tensor) -> bool:
        """Whether a tensor is eager's own but for roundings, so that it needs no noise floor."""
        apart = errors_of(candidate, floor)
        return apart.rms <= self.bounds.plausible and apart.worst <= WORST_FACTOR * self.bounds.plausible

    def why_unexplained(self, usual: Errors) -> str | None:
        """Say why eager's error is not that of rounding, or return None if it is."""
        own = f"cannot be judged: eager itself is off by {usual.rms:.2g}"
        if not self.moved.is_known:
            return None
        if why := self.why_unsteady(usual):
            return why
        explained = 0.0
        for move in self._runs(1.0):
            explained = max(explained, EXPLAINED * move.errors.rms)
            if usual.rms <= explained + self.bounds.plausible:
                return None
        if not explained:  # it does not run in our mode, or is computed beyond the reach of any mode
            return f"{own}, and how much of that is rounding cannot be measured" if usual.rms >= BLIND else None
        return (
            f"{own} from its reference, and rounding explains no more than {explained:.1g} of it: one of them is wrong"
        )

    def why_unsteady(self, off: Errors) -> str | None:
        """Say that eager differs each time, by enough to explain an error `off`, or return None if it does not."""
        again = self.moved.move(self.name, 0.0, 1, self._scale)
        if again is None or again.errors.rms <= max(self.bounds.plausible, off.rms / EXPLAINED):
            return None
        return (
            f"cannot be judged: eager itself is off by {again.errors.rms:.2g} when it is run again: it keeps state "
            "that is not put back"
        )

    def _why_blind(self, floor: torch.Tensor, usual: Errors) -> str | None:
        """Say why no wrong answer would be noticed, or return None if one would be."""
        first = next(self._runs(1.0), None)
        if first is None or not first.errors.rms or (not is_rounded(floor) and usual.rms < BLIND):
            return None
        most, most_in_middle = most_flipped(usual), math.inf
        if is_rounded(floor):
            most = RMS_FACTOR * max(usual.rms, first.errors.rms)
            most_in_middle = NOTICED_IN_THE_MIDDLE * max(median_error(floor, self.exact, self._scale), first.middle)
        if any(move.errors.rms > most or move.middle > most_in_middle for move in self._runs(COARSE)):
            return None
        return (
            f"cannot be judged: eager itself is off by {usual.rms:.2g}, rounding alone moves it by "
            f"{first.errors.rms:.2g}, and rounding {COARSE:.0f} times as coarse looks the same, as a wrong answer would"
        )

    @property
    def _scale(self) -> float:
        return scale_of(self.exact) if is_rounded(self.exact) else 1.0

    def _runs(self, roundings: float) -> Iterator[Move]:
        scale = self._scale
        found = (self.moved.move(self.name, roundings, run, scale) for run in range(1, RUNS + 1))
        return (move for move in found if move is not None)
