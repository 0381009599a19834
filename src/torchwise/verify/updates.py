"""Compare what several steps leave behind: how parameters moved, buffers, the optimizer's state, and curves of losses.

An optimizer's state may depend on rounding in more than its numbers. L-BFGS leaves out directions that are too short,
and a line search takes a varying number of evaluations. Eager with perturbed roundings shows whether that is so
(`noise_floor`). If it is, the state of that parameter is not compared. Its effect is: on the parameters, also after
further steps, and on the losses.

Whether two ways to train make the same progress is tested on the curves of their losses. From one state, each of
several seeds gives an order of the batches and random numbers, and both train so. For each seed the mean loss over the
second half of the steps is compared, relative to eager's: d. Two ways that differ by rounding alone differ in d by
noise around 0. Its size is unknown beforehand, as training amplifies roundings. So d is compared with its own spread
over the seeds. The candidate fails if the mean of d is beyond the margin even at the near end of its confidence
interval (Student's t). A candidate whose d is truly within the margin fails with a chance of at most
`FALSE_ALARM_RATE`. If the seeds' curves are all the same, the mean itself decides.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from torchwise.records import Check, CheckCause, CheckName, Figure, Outcome
from torchwise.verify.deviation import RMS_FACTOR, Errors, projection_ratio, widen_tensor
from torchwise.verify.noise_floor import Bounds, NoiseFloor, Sensitivity
from torchwise.verify.step_runner import StateAfter, form_of
from torchwise.workload import pytree

GRANTED, GRANTED_IN_FLOAT64 = 1e-3, 1e-10
"""Relative error granted to state, and the one granted if everything is in float64, without anything more precise."""
ASTRAY = 0.5
"""Relative error of an update's size along the reference's that no rounding explains: one that is left out has 1."""


def bounds_of(*, is_own: bool, in_float64: bool) -> Bounds:
    """Return the errors granted to state: by whether eager is its own reference, and whether all is in float64."""
    granted = GRANTED_IN_FLOAT64 if in_float64 else GRANTED
    return Bounds(granted, 10 * granted, is_own or in_float64)


@dataclass(frozen=True, slots=True)
class Sides:
    """The state after some steps: of the candidate, of eager at its precision, and in float64."""

    candidate: StateAfter
    floor: StateAfter
    reference: StateAfter

    def drop_slots(self) -> Sides:
        """Return the state that can be compared if the optimizer's state cannot."""
        return Sides(self.candidate.drop_slots(), self.floor.drop_slots(), self.reference.drop_slots())


def compare_updates(
    sides: Sides,
    steps: int,
    rounding: Collection[str] = (),
    bounds: Bounds | None = None,
    moved: Sensitivity | None = None,
) -> tuple[Check, bool]:
    """Compare all state after some steps.

    Args:
        sides: the state on each side.
        steps: the number of steps.
        rounding: parameters whose gradients consist of roundings alone. If those are much of an update in eager too, it
            need only be finite.
        bounds: the granted errors.
        moved: how far rounding moves eager's state.

    Returns:
        The check, and whether state was left out whose form is decided by rounding.
    """
    comparison = _Comparison(
        sides, steps, rounding, bounds or bounds_of(is_own=False, in_float64=False), moved or Sensitivity()
    )
    return comparison.check(), bool(comparison.undecided)


class _Comparison:
    def __init__(self, sides: Sides, steps: int, rounding: Collection[str], bounds: Bounds, moved: Sensitivity) -> None:
        self.undecided: set[int] = set()
        self._sides = sides
        self._steps = steps
        self._after = f"after {steps} steps"
        self._rounding = rounding
        self._bounds = bounds
        self._moved = moved
        self._worst, self._usual = 0.0, 0.0

    def check(self) -> Check:
        candidate, reference = self._sides.candidate, self._sides.reference
        self.undecided = {number for number, _ in self._find_undecided()}
        mine, names = (
            [name for name in side.state if not self._is_left_out(name, side)] for side in (candidate, reference)
        )
        if missing := set(mine) ^ set(names):
            return Check(CheckName.STATE, Outcome.FAIL, f"{min(missing)} is there on one side alone")
        void = None
        for name in names:
            found = self._judge_leaf(name, reference.state[name])
            if found and found.outcome is Outcome.FAIL:
                return found
            void = void or found
        if void:
            return void
        detail = f"{self._after} {len(names)} tensors of state are off by {self._worst:.2g} at most, eager's by "
        detail += f"{self._usual:.2g}"
        if self.undecided:
            detail += ". The optimizer's own state depends on rounding, and is judged by its effect"
        figures = {Figure.LIMIT: self._limit_of(self._usual), Figure.SAMPLES: len(names), Figure.STEPS: self._steps}
        return Check(CheckName.STATE, Outcome.PASS, detail, self._worst, self._usual, figures=figures)

    def _find_undecided(self) -> set[tuple[int, str]]:
        """Return the slots whose form differs between sides, if rounding alone explains that."""
        candidate, floor, reference = (
            side.forms() for side in (self._sides.candidate, self._sides.floor, self._sides.reference)
        )
        return {
            slot
            for slot in {*candidate, *floor, *reference}
            if floor.get(slot) != reference.get(slot)
            or (candidate.get(slot) != reference.get(slot) and self._moved.is_decided_by_rounding(form_of(slot)))
        }

    def _is_left_out(self, name: str, side: StateAfter) -> bool:
        return name in side.slots and side.slots[name][0] in self.undecided

    def _judge_leaf(self, name: str, exact: Any) -> Check | None:
        """Return a check that speaks against a leaf, or None."""
        value, eagers = self._sides.candidate.state[name], self._sides.floor.state.get(name)
        if not isinstance(exact, torch.Tensor) or not (exact.is_floating_point() or exact.is_complex()):
            same = _equal(value, exact)
            detail = f"{name} is {value}, in the reference {exact}"
            return None if same else Check(CheckName.STATE, Outcome.FAIL, detail)
        parameter = self._sides.reference.of.get(name, "")
        quiet = self._sides.reference.quiet.get(parameter)
        off, normal = (_relative_error(side, exact, quiet) for side in (value, eagers))
        if parameter in self._rounding and normal >= 10 * GRANTED and not math.isnan(off):
            return None
        if math.isnan(off) and not math.isnan(normal):
            detail = f"{name} is not finite just where the reference is not"
            return Check(CheckName.STATE, Outcome.FAIL, detail, off, normal, CheckCause.NOT_FINITE)
        slot = self._sides.reference.slots.get(name)
        if self._is_off(off, normal) and (self._bounds.is_own or self.undecided or slot):
            by_rounding = self._moved.measure_rounding_move(name, exact).rms
            if slot and not self._is_off(off, by_rounding):
                self.undecided.add(slot[0])
                return None
            normal = normal if slot else max(normal, by_rounding)
        if eagers is not None and (
            why := self._why_in_doubt(name, exact, (off, normal), _relative_error(value, eagers, quiet))
        ):
            return Check(CheckName.STATE, Outcome.NOT_COMPARABLE, f"{self._after} {name} {why}", off, normal)
        if self._is_off(off, normal):
            detail = f"{self._after} {name} is off by {off:.2g} (root mean square), eager by {normal:.2g}"
            figures = {Figure.LIMIT: self._limit_of(normal), Figure.STEPS: self._steps}
            return Check(CheckName.STATE, Outcome.FAIL, detail, off, normal, figures=figures)
        if off > self._worst:
            self._worst, self._usual = off, normal
        return self._check_update_scale(name, value, eagers, exact) if parameter not in self._rounding else None

    def _why_in_doubt(self, name: str, exact: torch.Tensor, errors: tuple[float, float], apart: float) -> str | None:
        off, normal = errors
        noise = NoiseFloor(name, exact, self._bounds, self._moved)
        if normal > self._bounds.plausible and not apart <= self._bounds.plausible:
            return noise.why_unexplained(Errors(normal, 0.0))
        return noise.why_unsteady(Errors(off, 0.0)) if self._is_off(off, normal) else None

    def _is_off(self, off: float, normal: float) -> bool:
        return off > self._limit_of(normal)

    def _limit_of(self, normal: float) -> float:
        return RMS_FACTOR * normal + self._bounds.granted

    def _check_update_scale(self, name: str, value: Any, eagers: Any, exact: torch.Tensor) -> Check | None:
        if name not in self._sides.reference.updates:
            return None
        if not bool(exact.any()):
            return None
        moved, normally = (projection_ratio(side, exact) for side in (value, eagers))
        if not abs(normally - 1) < ASTRAY / 2 or abs(moved - 1) < ASTRAY:
            return None
        detail = f"{self._after} {name} is {moved:.2g} times the reference's, eager's {normally:.2g}"
        return Check(CheckName.STATE, Outcome.FAIL, detail, abs(moved - 1), abs(normally - 1))


def _equal(value: Any, exact: Any) -> bool:
    if isinstance(exact, torch.Tensor):
        return isinstance(value, torch.Tensor) and bool(torch.equal(value.to(exact.device), exact))
    return bool(value == exact) or not isinstance(exact, (bool, int, float, str))


def _relative_error(tensor: Any, exact: torch.Tensor, quiet: torch.Tensor | None) -> float:
    """Return the relative error (root mean square) over the elements that are not quiet.

    It is NaN if other elements are finite than in the reference: a mask of infinities must be the same one.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.shape != exact.shape:
        return math.nan
    target, value = widen_tensor(exact), widen_tensor(tensor).to(exact.device)
    finite = target.isfinite()
    if not torch.equal(value.isfinite(), finite) or not pytree.equal(value[~finite], target[~finite]):
        return math.nan
    judged = finite if quiet is None or quiet.shape != finite.shape else finite & ~quiet.to(finite.device)
    if not bool(judged.any()):
        return 0.0
    scale = float(target[finite].abs().square().mean().sqrt()) or 1.0
    return float((value - target)[judged].abs().square().mean().sqrt()) / scale


FALSE_ALARM_RATE = 1e-3
MARGIN, MARGIN_REDUCED = 0.01, 0.02
"""Relative difference of the mean loss that is granted, at the model's own and at a lower precision."""


def check_trajectories(candidate_losses: list[list[float]], eager_losses: list[list[float]], *, reduced: bool) -> Check:
    """Compare the losses of a candidate and of eager on the same batches, by seed and step.

    `reduced` says that the candidate computes in a lower precision than the step as written.
    """
    from scipy.special import stdtrit  # takes a sixth of a second, and only training steps need it

    candidate, eager = np.array(candidate_losses), np.array(eager_losses)
    if bool((np.isfinite(eager) & ~np.isfinite(candidate)).any()):
        return Check(
            CheckName.LOSS_CURVES,
            Outcome.FAIL,
            "the loss is not finite where eager's is",
            cause=CheckCause.NOT_FINITE,
        )
    if not np.isfinite(eager).all():
        return Check(CheckName.LOSS_CURVES, Outcome.NOT_COMPARABLE, "eager's own loss is not finite")
    half = eager.shape[1] // 2
    scale = np.abs(eager).mean() or 1.0
    differences = (candidate[:, half:].mean(axis=1) - eager[:, half:].mean(axis=1)) / scale
    mean, margin = float(differences.mean()), MARGIN_REDUCED if reduced else MARGIN
    spread = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    reach = float(stdtrit(len(differences) - 1, 1 - FALSE_ALARM_RATE)) * spread
    detail = (
        f"over {eager.shape[0]} seeds of {eager.shape[1]} steps the mean loss differs from eager's by {mean:+.2%} ± "
        f"{reach:.2%}, and {margin:.0%} is granted (false alarms: {FALSE_ALARM_RATE:g})"
    )
    figures = {
        Figure.LIMIT: margin,
        Figure.SAMPLES: eager.shape[0],
        Figure.STEPS: eager.shape[1],
        Figure.HALF_WIDTH: reach,
        Figure.LEVEL: FALSE_ALARM_RATE,
        Figure.FIRST_LOSS: float(candidate[:, 0].mean()),
        Figure.LAST_LOSS: float(candidate[:, -1].mean()),
    }
    outcome = Outcome.FAIL if abs(mean) - reach > margin else Outcome.PASS
    check = Check(CheckName.LOSS_CURVES, outcome, detail, abs(mean), figures=figures)
    return replace(check, detail=f"{detail}; {check.describe_loss()}")
