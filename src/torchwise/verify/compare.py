"""Two observations against a third: is the candidate no further from the reference than eager is?

Error is relative, in the root mean square over a tensor and in the worst element (scaled by the reference's own root
mean square). A candidate passes when each error is within a stated factor of eager's, plus a few roundings.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchwise.records import Check, Outcome
from torchwise.records.verdict import STRIDES
from torchwise.verify.leaves import is_same_code, is_unread, is_value
from torchwise.verify.observe import Observation

if TYPE_CHECKING:
    import torch

RMS_FACTOR = 4.0
"""Times eager's error that a candidate's error may be. PyTorch's own benchmarks use 2 to 3, and 10 for small tensors;
reordering a sum legitimately moves its error by such factors, a wrong answer moves it by hundreds."""
WORST_FACTOR = 10.0
ROUNDINGS = 32.0
"""Roundings of the candidate's dtype that are always granted: eager may hit the reference exactly, by luck."""
ROUNDINGS_WITHOUT_REFERENCE = 1024.0
"""The same where eager itself is the reference, whose own error is then unknown (1e-4 in float32, as PyTorch's own
benchmarks tolerate)."""
MOST_GRANTED = 1e-3
"""Yet never more than this, or two roundings: 32 roundings of bfloat16 would be a quarter of the answer."""


@dataclass(frozen=True, slots=True)
class Errors:
    """How far a tensor is from the reference, relative to the reference's root mean square."""

    rms: float
    worst: float


def compare(
    candidate: Observation,
    native: Observation,
    floor: Observation,
    reference: Observation | None,
    epsilon: float | None,
) -> list[Check]:
    """Hold a candidate's observation against the others.

    Args:
        candidate: what is judged.
        native: eager as it is: decides structure, dtypes, shapes, strides and aliases.
        floor: eager at the candidate's precision: decides how large an error is normal.
        reference: the model in float64; None where it cannot run, then `native` stands in for it.
        epsilon: spacing at 1 of the precision that the candidate computes in; None for each tensor's own dtype.
    """
    structure = check_structure(candidate, native)
    if structure.outcome is not Outcome.PASS:
        return [structure]
    values = _values(candidate, native, floor, reference, epsilon)
    if values.outcome is Outcome.NOT_COMPARABLE and is_eagers_own(candidate, native):
        values = Check("values", Outcome.PASS, f"equal to eager bit by bit, where {values.detail}", 0.0, 0.0)
    return [structure, values]


def is_eagers_own(candidate: Observation, native: Observation) -> bool:
    """Whether every value is eager's, bit by bit: where the model decides by rounding (how many boxes are above a
    threshold), float64 may decide otherwise, and no other yardstick is left.
    """
    import torch

    pairs = zip(candidate.leaves, native.leaves, strict=True)
    return all(
        ours.dtype == theirs.dtype and torch.equal(ours, theirs)
        if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)
        else is_value(ours) and type(ours) is type(theirs) and ours == theirs
        for (_, ours), (_, theirs) in pairs
    )


def check_structure(candidate: Observation, native: Observation) -> Check:
    """Compare everything but values: paths, types, dtypes, shapes, strides, devices, and what shares memory."""

    def failed(detail: str) -> Check:
        return Check("structure", Outcome.FAIL, detail)

    if candidate.form != native.form:
        return failed(f"the outputs differ in structure: {_apart(candidate.form, native.form)}")
    ours, theirs = dict(candidate.leaves), dict(native.leaves)
    if list(ours) != list(theirs):
        odd = sorted(set(ours) ^ set(theirs)) or ["their order"]
        return failed(f"the outputs differ in structure at {odd[0]}")
    for name, leaf in ours.items():
        if problem := _form_problem(leaf, theirs[name]):
            return failed(f"{name} {problem}")
    for name, leaf in ours.items():
        if _lies_otherwise(leaf, theirs[name]):
            strides = tuple(leaf.stride()), tuple(theirs[name].stride())
            what = STRIDES if name.startswith("output") else "structure"  # buffers and inputs are not laid out anew
            return Check(what, Outcome.FAIL, f"{name} has strides {strides[0]}, in eager {strides[1]}")
    if candidate.aliases != native.aliases:
        return failed(f"outputs share memory with inputs at {_pairs(candidate)}, in eager at {_pairs(native)}")
    if shared := candidate.shared - native.shared:
        one, other = min(shared)
        return failed(f"outputs {one} and {other} share memory, in eager they do not")
    return Check("structure", Outcome.PASS, f"{len(ours)} values agree in form, dtype, shape, strides and aliasing")


def _apart(ours: str, theirs: str) -> str:
    """Return where two forms part: the outermost first, then each array and object among the outputs."""
    pairs = itertools.zip_longest(ours.split("; "), theirs.split("; "), fillvalue="nothing")
    mine, eagers = next((one, other) for one, other in pairs if one != other)
    return f"{mine}, in eager {eagers}"


def _pairs(observation: Observation) -> str:
    return ", ".join(f"output {o} / input {i}" for o, i in sorted(observation.aliases)) or "none"


def _form_problem(ours: Any, theirs: Any) -> str | None:
    import torch

    if not isinstance(theirs, torch.Tensor):
        if isinstance(ours, torch.Tensor) or type(ours) is not type(theirs):
            return f"is of type {type(ours).__name__}, in eager {type(theirs).__name__}"
        return None
    if not isinstance(ours, torch.Tensor):
        return f"is of type {type(ours).__name__}, in eager a tensor"
    for what in ("dtype", "shape", "device", "layout"):
        if getattr(ours, what) != getattr(theirs, what):
            return f"has {what} {getattr(ours, what)}, in eager {getattr(theirs, what)}"
    return None


def _lies_otherwise(ours: Any, theirs: Any) -> bool:
    import torch

    if not isinstance(ours, torch.Tensor) or ours.layout is not torch.strided:
        return False
    return _strides(ours) != _strides(theirs)


def _strides(tensor: torch.Tensor) -> list[int]:
    """Return the strides that mean anything: those of dimensions longer than 1."""
    return [s for size, s in zip(tensor.shape, tensor.stride(), strict=True) if size > 1] if tensor.numel() else []


def _values(
    candidate: Observation,
    native: Observation,
    floor: Observation,
    reference: Observation | None,
    epsilon: float | None,
) -> Check:
    import torch

    worst: Errors | None = None
    normal, unseen = Errors(0.0, 0.0), ""
    plain, floors, references = dict(native.leaves), dict(floor.leaves), dict((reference or native).leaves)
    for name, leaf in candidate.leaves:
        if not isinstance(leaf, torch.Tensor):
            if problem := _plain_problem(leaf, plain[name]):
                return Check("values", Outcome.FAIL, f"{name} {problem}")
            if name.startswith("output") and not is_value(leaf) and not is_same_code(leaf, plain[name]):
                unseen = unseen or f"{name} is a {type(leaf).__qualname__}, which {_why_unseen(leaf)}"
            continue
        against = references.get(name)
        if not isinstance(against, torch.Tensor) or against.shape != leaf.shape:
            return Check("values", Outcome.NOT_COMPARABLE, f"{name} has no counterpart in the reference")
        granted = granted_for(leaf, epsilon, has_reference=reference is not None)
        problem, errors, usual = _tensor_problem(leaf, floors[name], against, granted)
        if problem:
            return Check("values", Outcome.FAIL, f"{name} {problem}", errors.rms, usual.rms)
        if worst is None or errors.rms > worst.rms:
            worst, normal = errors, usual
    if unseen:  # said last: what can be compared may be wrong, which says more
        return Check("values", Outcome.NOT_COMPARABLE, unseen)
    if worst is None:
        return Check("values", Outcome.PASS, "every value is equal (there is no tensor among them)")
    yardstick = "the float64 reference" if reference else "eager (there is no float64 reference)"
    detail = f"error {worst.rms:.2g} against {yardstick}, eager's own is {normal.rms:.2g}"
    return Check("values", Outcome.PASS, detail, worst.rms, normal.rms)


def _why_unseen(leaf: Any) -> str:
    if is_unread(leaf):
        return "computes nothing before it is read: call the model in a function that returns a list of what it yields"
    return "cannot be looked into: return a dataclass, tensors or arrays"


def granted_for(leaf: torch.Tensor, epsilon: float | None, *, has_reference: bool) -> float:
    """Return the relative error that a tensor may have, whatever eager's is; `epsilon` as `compare` takes it."""
    import torch

    if epsilon is None:
        epsilon = torch.finfo(leaf.dtype).eps if leaf.is_floating_point() or leaf.is_complex() else 0.0
    granted = epsilon * (ROUNDINGS if has_reference else ROUNDINGS_WITHOUT_REFERENCE)
    return max(2 * epsilon, min(granted, MOST_GRANTED))


def _plain_problem(ours: Any, theirs: Any) -> str | None:
    if isinstance(ours, float) and isinstance(theirs, float):
        close = math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-16) or (math.isnan(ours) and math.isnan(theirs))
        return None if close else f"is {ours!r}, in eager {theirs!r}"
    if is_value(ours) and ours != theirs:
        return f"is {ours!r}, in eager {theirs!r}"
    return None


def _tensor_problem(
    ours: torch.Tensor, floor: torch.Tensor, reference: torch.Tensor, granted: float
) -> tuple[str | None, Errors, Errors]:
    if not (ours.is_floating_point() or ours.is_complex()):
        return _discrete_problem(ours, floor, reference)
    if problem := finiteness_problem(ours, floor, reference):
        return problem, Errors(1.0, 1.0), errors_of(floor, reference)
    errors, normal = errors_of(ours, reference), errors_of(floor, reference)
    if errors.rms > RMS_FACTOR * normal.rms + granted:
        return f"is off by {errors.rms:.2g} (root mean square), eager by {normal.rms:.2g}", errors, normal
    if errors.worst > WORST_FACTOR * (normal.worst + granted):
        return f"is off by {errors.worst:.2g} in its worst element, eager by {normal.worst:.2g}", errors, normal
    return None, errors, normal


def finiteness_problem(ours: torch.Tensor, floor: torch.Tensor, reference: torch.Tensor) -> str | None:
    """Say what is wrong with the infinities and NaN of a tensor, if anything is."""
    wrong = reference.isfinite() & ~ours.isfinite()
    if bool(wrong.any()):
        return f"is not finite in {int(wrong.sum())} of {wrong.numel()} elements where the reference is"
    if bool(_other_infinity(ours, floor, reference).any()):
        return "has other infinities or NaN than eager and the reference"
    return None


def _other_infinity(ours: torch.Tensor, floor: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return where the reference is not finite, and the candidate of another kind than it and eager: as in a mask."""
    import torch

    def kind(tensor: torch.Tensor) -> torch.Tensor:
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        kinds = real.isnan() * 1 + real.isposinf() * 2 + real.isneginf() * 3
        return kinds.sum(-1) if tensor.is_complex() else kinds

    mine = kind(ours)
    return ~reference.isfinite() & (mine != kind(reference)) & (mine != kind(floor))


def _discrete_problem(
    ours: torch.Tensor, floor: torch.Tensor, reference: torch.Tensor
) -> tuple[str | None, Errors, Errors]:
    """Judge whole numbers and booleans: a rounding may flip an argmax, but not more often than eager's own does."""
    reference = reference.to(ours.dtype)
    count = max(ours.numel(), 1)
    wrong = float((ours != reference).sum()) / count
    normal = float((floor != reference).sum()) / count
    if wrong > min(RMS_FACTOR * normal, (1 + normal) / 2):  # or where eager errs often, anything would pass
        return f"differs in {wrong:.2%} of its elements, eager in {normal:.2%}", Errors(wrong, 1), Errors(normal, 1)
    return None, Errors(wrong, 0), Errors(normal, 0)


def errors_of(tensor: torch.Tensor, reference: torch.Tensor) -> Errors:
    """Return the errors of `tensor` over the elements where both are finite.

    Where the reference is zero throughout, errors are absolute.
    """
    from torchwise.verify.reference import widened

    both = tensor.isfinite() & reference.isfinite()
    exact = widened(reference)[both]
    if exact.numel() == 0:
        return Errors(0.0, 0.0)
    off = (widened(tensor)[both] - exact).abs()
    scale = float(exact.abs().square().mean().sqrt()) or 1.0
    return Errors(float(off.square().mean().sqrt()) / scale, float(off.max()) / scale)
