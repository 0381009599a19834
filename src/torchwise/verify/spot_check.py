"""A spot check in a live program: one answer against the original model's, without a reference or a repetition.

The plan was verified before. This check finds problems that a verification on examples cannot: other inputs, another
state of the hardware, a fault that came with time. False alarms must be very rare, as one disables the plan. So
differences that rounding can explain pass.
"""

from __future__ import annotations

from typing import Any

import torch

from torchwise.records import Outcome
from torchwise.verify.compare import check_structure
from torchwise.verify.deviation import RMS_FACTOR, WORST_FACTOR, errors_of, is_rounded, legible, tolerance_of
from torchwise.verify.leaves import is_value
from torchwise.verify.noise_floor import Sensitivity
from torchwise.verify.observe import Observation

FLIPPED = 0.05
"""Share of whole numbers and booleans that may differ: a rounding flips an argmax, or a comparison near a threshold."""
MAX_INHERITED = 0.125
"""Maximum verified error that counts as rounding: from twice that, an answer of zeros would pass."""


def mismatch(
    candidate: Observation, eager: Observation, verified_error: float, moved: Sensitivity | None = None
) -> str | None:
    """Return the difference of an answer that cannot be rounding, or None if it agrees.

    Args:
        candidate: the plan's answer.
        eager: the original model's answer on the same inputs.
        verified_error: the plan's largest relative error in its verification. The original's own is of that order, too.
        moved: how far rounding moves the original on these inputs. It is measured only if the answers differ by much.
    """
    structure = check_structure(candidate, eager)
    if structure.outcome is not Outcome.PASS:
        return structure.detail
    expected = dict(eager.leaves)
    for name, leaf in candidate.leaves:
        if not isinstance(leaf, torch.Tensor):
            continue
        found = _differs(leaf, expected[name], verified_error)
        if found and moved and is_rounded(leaf) and verified_error > MAX_INHERITED:
            found = _differs(
                leaf, expected[name], verified_error, moved.measure_rounding_move(name, expected[name]).rms
            )
        if found:
            return f"{name} {found}"
    return None


def differs(candidate: Any, eager: Any, verified_error: float) -> str | None:
    """Return the difference of one value, on any device, that cannot be rounding, or None if it agrees."""
    if not isinstance(candidate, torch.Tensor) or not isinstance(eager, torch.Tensor):
        is_other = type(candidate) is not type(eager) or (
            is_value(candidate) and not isinstance(candidate, float) and candidate != eager
        )
        return f"is {candidate!r} in place of {eager!r}"[:200] if is_other else None
    if candidate.shape != eager.shape or candidate.dtype != eager.dtype:
        own = f"shape {tuple(candidate.shape)} and dtype {candidate.dtype}"
        return f"has {own}, not {tuple(eager.shape)} and {eager.dtype}"
    return _differs(candidate.to(eager.device), eager, verified_error)


def _differs(
    candidate: torch.Tensor, eager: torch.Tensor, verified_error: float, by_rounding: float = 0.0
) -> str | None:
    if not is_rounded(candidate):
        flipped = int((candidate != eager).sum())
        share = flipped / max(candidate.numel(), 1)
        return f"differs in {share:.1%} of its elements" if flipped > 1 and share > FLIPPED else None
    if lost := int((legible(eager).isfinite() & ~legible(candidate).isfinite()).sum()):
        return f"is not finite in {lost} of {candidate.numel()} elements where the original is"
    granted = tolerance_of(candidate, None, has_reference=False)
    allowed = RMS_FACTOR * min(verified_error, max(MAX_INHERITED, by_rounding)) + granted
    errors = errors_of(candidate, eager)
    if errors.rms > allowed or errors.worst > WORST_FACTOR * allowed:
        return f"is off by {errors.rms:.2g} (root mean square), {errors.worst:.2g} at worst; {allowed:.2g} is rounding"
    return None
