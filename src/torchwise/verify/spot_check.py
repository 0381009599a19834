"""A spot check in a live program: one answer against the original's, without a reference and without a repetition.

The plan was verified before. This finds problems that a verification on examples cannot: other inputs, another state of
the hardware, a fault that came with time. False alarms must be very rare, as the plan is given up after one. So
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
    ours: Observation, theirs: Observation, proven_error: float, moved: Sensitivity | None = None
) -> str | None:
    """Return the difference of an answer that cannot be rounding, or None if it agrees.

    Args:
        ours: the plan's answer.
        theirs: the original's answer on the same inputs.
        proven_error: the plan's largest relative error in its verification. The original's own is of that order, too.
        moved: how far rounding moves the original on these inputs, which is measured only if the two differ by much.
    """
    structure = check_structure(ours, theirs)
    if structure.outcome is not Outcome.PASS:
        return structure.detail
    known = dict(theirs.leaves)
    for name, leaf in ours.leaves:
        if not isinstance(leaf, torch.Tensor):
            continue
        found = _differs(leaf, known[name], proven_error)
        if found and moved and is_rounded(leaf) and proven_error > MAX_INHERITED:
            found = _differs(leaf, known[name], proven_error, moved.measure_rounding_move(name, known[name]).rms)
        if found:
            return f"{name} {found}"
    return None


def differs(ours: Any, theirs: Any, proven_error: float) -> str | None:
    """Return the difference of one value, on any device, that cannot be rounding, or None if it agrees."""
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        is_other = type(ours) is not type(theirs) or (is_value(ours) and not isinstance(ours, float) and ours != theirs)
        return f"is {ours!r} in place of {theirs!r}"[:200] if is_other else None
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"has shape {tuple(ours.shape)} and dtype {ours.dtype}, not {tuple(theirs.shape)} and {theirs.dtype}"
    return _differs(ours.to(theirs.device), theirs, proven_error)


def _differs(ours: torch.Tensor, theirs: torch.Tensor, proven_error: float, by_rounding: float = 0.0) -> str | None:
    if not is_rounded(ours):
        flipped = int((ours != theirs).sum())
        share = flipped / max(ours.numel(), 1)
        return f"differs in {share:.1%} of its elements" if flipped > 1 and share > FLIPPED else None
    if lost := int((legible(theirs).isfinite() & ~legible(ours).isfinite()).sum()):
        return f"is not finite in {lost} of {ours.numel()} elements where the original is"
    granted = tolerance_of(ours, None, has_reference=False)
    allowed = RMS_FACTOR * min(proven_error, max(MAX_INHERITED, by_rounding)) + granted
    errors = errors_of(ours, theirs)
    if errors.rms > allowed or errors.worst > WORST_FACTOR * allowed:
        return f"is off by {errors.rms:.2g} (root mean square), {errors.worst:.2g} at worst; {allowed:.2g} is rounding"
    return None
