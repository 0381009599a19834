"""Allow a candidate of a pair where it may differ: layouts of its own, overflow, denormals flushed, a tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from torchwise.records import Check, CheckName, Figure, Outcome
from torchwise.verify.compare import Sides, compare
from torchwise.verify.deviation import errors_of, is_rounded, legible
from torchwise.verify.noise_floor import Sensitivity
from torchwise.verify.observe import Observation

TINY_ROUNDINGS = 4.0
"""Multiple of the least normal number that a denormal answer may be off by, as devices may flush them to zero."""


def _map_tensors(observation: Observation, function: Callable[[str, torch.Tensor], torch.Tensor]) -> Observation:
    leaves = ((name, function(name, v) if isinstance(v, torch.Tensor) else v) for name, v in observation.leaves)
    return replace(observation, leaves=tuple(leaves))


def with_strides_of(candidate: Observation, native: Observation) -> Observation:
    """Lay outputs out as the reference's: on unusual layouts a candidate may choose its own."""
    known = dict(native.leaves)

    def lay_out(name: str, leaf: torch.Tensor) -> torch.Tensor:
        like = known.get(name)
        is_same = isinstance(like, torch.Tensor) and like.shape == leaf.shape and like.dtype == leaf.dtype
        if name not in candidate.outputs or not is_same or like is None or like.layout is not torch.strided:
            return leaf
        return torch.empty_like(like).copy_(leaf)

    return _map_tensors(candidate, lay_out)


def forgive_overflow(candidate: Observation, native: Observation, exact: Observation | None) -> Observation:
    """Accept the reference's own infinities and NaN where float64 has none: both overflow in the same way."""
    known, wide = dict(native.leaves), dict(exact.leaves) if exact else {}

    def accept(name: str, leaf: torch.Tensor) -> torch.Tensor:
        own, full = _find_alike(leaf, known, name), _find_alike(leaf, wide, name)
        if own is None or full is None:
            return leaf
        lost = ~legible(own).isfinite() & legible(full).isfinite()
        same = lost & ~legible(leaf).isfinite()
        return torch.where(same, own, leaf) if bool(same.any()) else leaf

    return _map_tensors(candidate, accept)


def with_overflow_of(native: Observation, exact: Observation | None) -> Observation | None:
    """Take the reference's own values for exact where it overflows, as float64 goes further than its dtype."""
    if exact is None:
        return None
    known = dict(native.leaves)

    def replace_lost(name: str, leaf: torch.Tensor) -> torch.Tensor:
        own = _find_alike(leaf, known, name)
        if own is None:
            return leaf
        lost = ~legible(own).isfinite() & legible(leaf).isfinite()
        return torch.where(lost, own.to(leaf.dtype), leaf) if bool(lost.any()) else leaf

    return _map_tensors(exact, replace_lost)


def _find_alike(leaf: torch.Tensor, known: dict[str, Any], name: str) -> torch.Tensor | None:
    """Return the tensor of that name, if it and the leaf are rounded numbers of one shape."""
    other = known.get(name)
    is_one = isinstance(other, torch.Tensor) and other.shape == leaf.shape and is_rounded(leaf) and is_rounded(other)
    return other if is_one else None


def forgive_flushing(candidate: Observation, floor: Observation) -> Observation:
    """Take the reference's values where both are zero but for denormal numbers."""
    known = dict(floor.leaves)

    def accept(name: str, leaf: torch.Tensor) -> torch.Tensor:
        like = _find_alike(leaf, known, name)
        if like is None or leaf.dtype != like.dtype:
            return leaf
        near = (leaf - like).abs() <= TINY_ROUNDINGS * torch.finfo(leaf.dtype).tiny
        return torch.where(near, like, leaf)

    return _map_tensors(candidate, accept)


def check_tolerance(candidate: Observation, native: Observation, tolerance: float) -> Check:
    """Check each output's relative error against the allowed one."""
    structure = compare(Sides(candidate, native, native, None), None, Sensitivity())[0]
    if structure.outcome is not Outcome.PASS:
        return structure
    known, worst = dict(native.leaves), 0.0
    for name, leaf in candidate.leaves:
        own = known[name]
        if not isinstance(leaf, torch.Tensor) or not isinstance(own, torch.Tensor):
            if leaf != own:
                return Check(CheckName.VALUES, Outcome.FAIL, f"{name} is {leaf!r}, and {own!r} in the reference"[:200])
            continue
        if is_rounded(leaf) and not torch.equal(legible(leaf).isfinite(), legible(own).isfinite()):
            return Check(CheckName.VALUES, Outcome.FAIL, f"{name} has other infinities or NaN than the reference")
        error = errors_of(leaf, own).rms
        if error > tolerance:
            detail = f"{name} is off by {error:.2g} (root mean square), and {tolerance:g} is allowed"
            return Check(CheckName.VALUES, Outcome.FAIL, detail, error, figures={Figure.LIMIT: tolerance})
        worst = max(worst, error)
    detail = f"error {worst:.2g} against the reference, and {tolerance:g} is allowed"
    return Check(CheckName.VALUES, Outcome.PASS, detail, worst, figures={Figure.LIMIT: tolerance})
