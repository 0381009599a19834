"""The distance of a tensor from another, and a candidate's allowed distance: by eager's own error, and a few roundings.

Error is relative, in the root mean square over a tensor and in the worst element (scaled by the reference's own root
mean square). For whole numbers and booleans it is the share of elements that differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

RMS_FACTOR = 4.0
"""Maximum error of a candidate, as a multiple of eager's error.

PyTorch's own benchmarks use 2 to 3, and 10 for small tensors. Reordering a sum legitimately moves its error by such
factors. A wrong answer moves it by hundreds.
"""
WORST_FACTOR = 10.0
ROUNDINGS = 32.0
"""Roundings of the candidate's dtype that are always granted: eager may hit the reference exactly, by luck."""
ROUNDINGS_WITHOUT_REFERENCE = 1024.0
"""The same if eager itself is the reference, as its own error is then unknown (1e-4 in float32, as PyTorch's own
benchmarks tolerate).
"""
MAX_GRANTED = 1e-3
"""Yet never more than this, or two roundings: 32 roundings of bfloat16 would be a quarter of the answer."""


@dataclass(frozen=True, slots=True)
class Errors:
    """How far a tensor is from the reference, relative to the reference's root mean square."""

    rms: float
    worst: float

    def or_larger(self, other: Errors) -> Errors:
        """Return the larger of each."""
        return Errors(max(self.rms, other.rms), max(self.worst, other.worst))


def tolerance_of(leaf: torch.Tensor, epsilon: float | None, *, has_reference: bool) -> float:
    """Return the relative error that a tensor may have in any case. `epsilon` is as for `compare`."""
    if epsilon is None:
        epsilon = torch.finfo(leaf.dtype).eps if is_rounded(leaf) else 0.0
    granted = epsilon * (ROUNDINGS if has_reference else ROUNDINGS_WITHOUT_REFERENCE)
    return max(2 * epsilon, min(granted, MAX_GRANTED))


def is_rounded(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds numbers that can be off by a little."""
    return tensor.is_floating_point() or tensor.is_complex()


def widen_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a floating tensor in float64, a complex one in complex128, any other as it is."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def legible(tensor: torch.Tensor) -> torch.Tensor:
    """Return numbers of one byte in float32, which holds them all, and for which PyTorch has all operators."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def problem_of(candidate: torch.Tensor, errors: Errors, usual: Errors, granted: float) -> str | None:
    """Describe the problem of a tensor with these errors, compared with eager's errors, or return None."""
    if not is_rounded(candidate):
        if errors.rms > limit_of(candidate, usual, granted):
            return f"differs in {errors.rms:.2%} of its elements, eager in {usual.rms:.2%}"
        return None
    if errors.rms > limit_of(candidate, usual, granted):
        return f"is off by {errors.rms:.2g} (root mean square), eager by {usual.rms:.2g}"
    if errors.worst > WORST_FACTOR * (usual.worst + granted):
        return f"is off by {errors.worst:.2g} in its worst element, eager by {usual.worst:.2g}"
    return None


def limit_of(candidate: torch.Tensor, usual: Errors, granted: float) -> float:
    """Return the largest error (root mean square, or share of elements) that a tensor may have, given eager's."""
    return RMS_FACTOR * usual.rms + granted if is_rounded(candidate) else most_flipped(usual)


def most_flipped(usual: Errors) -> float:
    """Return the share of whole numbers that may differ: a rounding may flip an argmax, as it does in eager.

    If eager errs often, several times its share would let anything pass. So the rest is halved instead.
    """
    return min(RMS_FACTOR * usual.rms, (1 + usual.rms) / 2)


def finiteness_problem(candidate: torch.Tensor, floor: torch.Tensor, reference: torch.Tensor) -> str | None:
    """Describe the problem with the infinities and NaN of a tensor, if there is one."""
    if not is_rounded(candidate):
        return None
    candidate, floor, reference = map(legible, (candidate, floor, reference))
    wrong = reference.isfinite() & ~candidate.isfinite()
    if bool(wrong.any()):
        return f"is not finite in {int(wrong.sum())} of {wrong.numel()} elements where the reference is"
    if bool(_other_infinity(candidate, floor, reference).any()):
        return "has other infinities or NaN than eager and the reference"
    return None


def _other_infinity(candidate: torch.Tensor, floor: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return a mask of elements, not finite in the reference, whose kind is neither the reference's nor eager's."""

    def kind(tensor: torch.Tensor) -> torch.Tensor:
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        kinds = real.isnan() * 1 + real.isposinf() * 2 + real.isneginf() * 3
        return kinds.sum(-1) if tensor.is_complex() else kinds

    own = kind(candidate)
    return ~reference.isfinite() & (own != kind(reference)) & (own != kind(floor))


def errors_of(tensor: torch.Tensor, reference: torch.Tensor, scale: float | None = None) -> Errors:
    """Return the errors of `tensor` over the elements that are finite in both.

    They are relative to `scale`, or else to the reference's root mean square. If that is zero, they are absolute.
    """
    if not is_rounded(tensor):
        return Errors(float((tensor != reference.to(tensor.dtype)).sum()) / max(tensor.numel(), 1), 0.0)
    off, exact = _absolute_errors(tensor, reference)
    if exact.numel() == 0:
        return Errors(0.0, 0.0)
    scale = scale or scale_of(exact)
    return Errors(float(off.square().mean().sqrt()) / scale, float(off.max()) / scale)


def scale_of(reference: torch.Tensor) -> float:
    """Return the scale of errors: the root mean square over the finite elements, or 1 if that is zero."""
    finite = widen_tensor(reference)[legible(reference).isfinite()]
    return (float(finite.abs().square().mean().sqrt()) if finite.numel() else 0.0) or 1.0


def median_error(tensor: torch.Tensor, reference: torch.Tensor, scale: float) -> float:
    """Return the error of the middle element, which a few that decide otherwise do not move."""
    off, _ = _absolute_errors(tensor, reference)
    return float(off.median()) / scale if off.numel() else 0.0


def _absolute_errors(tensor: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return absolute errors and exact values of the elements that are finite in both."""
    both = legible(tensor).isfinite() & legible(reference).isfinite()
    exact = widen_tensor(reference)[both]
    return (widen_tensor(tensor)[both] - exact).abs(), exact


def projection_ratio(tensor: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the size of a tensor along another, which is 1 if they agree."""
    direction, value = widen_tensor(exact).flatten(), widen_tensor(tensor).flatten().to(exact.device)
    return float((value * direction.conj()).sum().real / direction.abs().square().sum())
