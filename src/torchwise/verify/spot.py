"""A spot check in a live program: one answer against the original's, with neither a reference nor a second look.

The plan was proven before; this finds what a proof on examples cannot: other inputs, another state of the hardware, a
fault that came with time. It must hardly ever cry wolf, as a plan is given up for it: what rounding can do passes.
"""

from __future__ import annotations

import torch

from torchwise.records import Outcome
from torchwise.verify.compare import check_structure
from torchwise.verify.deviation import RMS_FACTOR, WORST_FACTOR, errors_of, granted_for, legible
from torchwise.verify.observe import Observation

FLIPPED = 0.05
"""Share of whole numbers and booleans that may differ: a rounding flips an argmax, or what lies next to a threshold."""


def mismatch(ours: Observation, theirs: Observation, proven_error: float) -> str | None:
    """Return what about an answer cannot be rounding, or None where it agrees.

    Args:
        ours: what the plan did.
        theirs: what the original did on the same inputs.
        proven_error: the plan's largest relative error in its proof; the original's own is of that order, too.
    """
    structure = check_structure(ours, theirs)
    if structure.outcome is not Outcome.PASS:
        return structure.detail
    known = dict(theirs.leaves)
    for name, leaf in ours.leaves:
        if isinstance(leaf, torch.Tensor) and (problem := _differs(leaf, known[name], proven_error)):
            return f"{name} {problem}"
    return None


def _differs(ours: torch.Tensor, theirs: torch.Tensor, proven_error: float) -> str | None:
    if not (ours.is_floating_point() or ours.is_complex()):
        flipped = int((ours != theirs).sum())
        share = flipped / max(ours.numel(), 1)
        return f"differs in {share:.1%} of its elements" if flipped > 1 and share > FLIPPED else None
    if lost := int((legible(theirs).isfinite() & ~legible(ours).isfinite()).sum()):
        return f"is not finite in {lost} of {ours.numel()} elements where the original is"
    granted = granted_for(ours, None, has_reference=False)
    errors, allowed = errors_of(ours, theirs), RMS_FACTOR * proven_error + granted
    if errors.rms > allowed or errors.worst > WORST_FACTOR * allowed:
        return f"is off by {errors.rms:.2g} (root mean square), {errors.worst:.2g} at worst; {allowed:.2g} is rounding"
    return None
