"""Compare two observations against a third: is the candidate no further from the reference than eager is?

A candidate passes if each tensor's error is within a stated factor of eager's, plus a few roundings (`deviation`).
Eager's error must be that of rounding (`yardstick`).
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from torchwise.records import Check, CheckCause, CheckName, Figure, Outcome
from torchwise.verify.deviation import Errors
from torchwise.verify.leaves import is_same_code, is_unread, is_value
from torchwise.verify.noise_floor import BLIND, Bounds, Sensitivity, judge
from torchwise.verify.observe import Observation

if TYPE_CHECKING:
    import torch


def compare(
    candidate: Observation,
    native: Observation,
    floor: Observation,
    reference: Observation | None,
    epsilon: float | None,
    moved: Sensitivity,
) -> list[Check]:
    """Compare a candidate's observation with the others.

    Args:
        candidate: the observation to judge.
        native: eager as it is: decides structure, dtypes, shapes, strides and aliases.
        floor: eager at the candidate's precision: decides how large an error is normal.
        reference: the model in float64, or None if it cannot run. Then `native` replaces it.
        epsilon: spacing at 1 of the precision that the candidate computes in, or None for each tensor's own dtype.
        moved: how far eager at the candidate's precision moves by rounding.
    """
    structure = check_structure(candidate, native)
    if structure.outcome is not Outcome.PASS:
        return [structure]
    values = _values(candidate, native, floor, reference, epsilon, moved)
    if values.outcome is Outcome.NOT_COMPARABLE and is_eagers_own(candidate, native):
        values = Check(CheckName.VALUES, Outcome.PASS, f"equal to eager bit by bit, where {values.detail}", 0.0, 0.0)
    return [structure, values]


def is_eagers_own(candidate: Observation, native: Observation) -> bool:
    """Whether every value is eager's, bit by bit.

    If the model decides by rounding (how many boxes are above a threshold), float64 may decide otherwise. Then no other
    noise floor is left.
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
    """Compare everything but values: paths, types, dtypes, shapes, strides, devices, and shared memory."""

    def make_failure(detail: str, cause: CheckCause | None = None) -> Check:
        return Check(CheckName.STRUCTURE, Outcome.FAIL, detail, cause=cause)

    if candidate.form != native.form:
        return make_failure(f"the outputs differ in structure: {_first_difference(candidate.form, native.form)}")
    ours, theirs = dict(candidate.leaves), dict(native.leaves)
    if list(ours) != list(theirs):
        odd = sorted(set(ours) ^ set(theirs)) or ["their order"]
        return make_failure(f"the outputs differ in structure at {odd[0]}")
    for name, leaf in ours.items():
        if problem := _form_problem(leaf, theirs[name]):
            return make_failure(f"{name} {problem}", CheckCause.NONE_IN_EAGER if theirs[name] is None else None)
    for name, leaf in ours.items():
        if _lies_otherwise(leaf, theirs[name]):
            strides = tuple(leaf.stride()), tuple(theirs[name].stride())
            # Buffers and inputs are never laid out again.
            kind = CheckName.STRIDES if name in candidate.outputs else CheckName.STRUCTURE
            return Check(kind, Outcome.FAIL, f"{name} has strides {strides[0]}, in eager {strides[1]}")
    if candidate.aliases != native.aliases:
        return make_failure(f"outputs share memory with inputs at {_pairs(candidate)}, in eager at {_pairs(native)}")
    if shared := candidate.shared - native.shared:
        one, other = min(shared)
        return make_failure(f"outputs {one} and {other} share memory, in eager they do not")
    detail = f"{len(ours)} values agree in form, dtype, shape, strides and aliasing"
    return Check(CheckName.STRUCTURE, Outcome.PASS, detail, figures={Figure.SAMPLES: len(ours)})


def _first_difference(ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    """Return the first difference of two forms. Outer containers come first, then arrays and objects in the outputs."""
    pairs = itertools.zip_longest(ours, theirs, fillvalue="nothing")
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
    moved: Sensitivity,
) -> Check:
    import torch

    worst: Errors | None = None
    normal, limit, unseen, count = Errors(0.0, 0.0), 0.0, "", 0
    void: Check | None = None
    plain, floors, references = dict(native.leaves), dict(floor.leaves), dict((reference or native).leaves)
    for name, leaf in candidate.leaves:
        if not isinstance(leaf, torch.Tensor):
            if problem := _plain_problem(leaf, plain[name]):
                return Check(CheckName.VALUES, Outcome.FAIL, f"{name} {problem}")
            if name in candidate.outputs and not is_value(leaf) and not is_same_code(leaf, plain[name]):
                unseen = unseen or f"{name} is a {type(leaf).__qualname__}, which {_why_unseen(leaf)}"
            continue
        against = references.get(name)
        if not isinstance(against, torch.Tensor) or against.shape != leaf.shape:
            return Check(CheckName.VALUES, Outcome.NOT_COMPARABLE, f"{name} has no counterpart in the reference")
        bounds = Bounds.from_tensor(leaf, epsilon, has_reference=reference is not None)
        found = judge(name, leaf, floors[name], against, bounds, moved)
        if found.outcome is not Outcome.PASS:
            detail, figures = f"{name} {found.detail}", {Figure.LIMIT: found.limit}
            check = Check(
                CheckName.VALUES, found.outcome, detail, found.errors.rms, found.usual.rms, found.cause, figures
            )
            if found.outcome is Outcome.FAIL:
                return check
            void = void or check
        count += 1
        telling = found.usual.rms < BLIND, found.errors.rms  # the error of a tensor that is all rounding says nothing
        if worst is None or telling > (normal.rms < BLIND, worst.rms):
            worst, normal, limit = found.errors, found.usual, found.limit
    # Reported last: comparable values may be wrong, which says more.
    if void:
        return void
    if unseen:
        return Check(CheckName.VALUES, Outcome.NOT_COMPARABLE, unseen)
    if worst is None:
        return Check(CheckName.VALUES, Outcome.PASS, "every value is equal (there is no tensor among them)")
    yardstick = "the float64 reference" if reference else "eager (there is no float64 reference)"
    detail = f"error {worst.rms:.2g} against {yardstick}, eager's own is {normal.rms:.2g}"
    figures = {Figure.LIMIT: limit, Figure.SAMPLES: count}
    return Check(CheckName.VALUES, Outcome.PASS, detail, worst.rms, normal.rms, figures=figures)


def _why_unseen(leaf: Any) -> str:
    if is_unread(leaf):
        return "computes nothing before it is read: call the model in a function that returns a list of what it yields"
    return "cannot be looked into: return a dataclass, tensors or arrays"


def _plain_problem(ours: Any, theirs: Any) -> str | None:
    if isinstance(ours, float) and isinstance(theirs, float):
        close = math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-16) or (math.isnan(ours) and math.isnan(theirs))
        return None if close else f"is {ours!r}, in eager {theirs!r}"
    if is_value(ours) and ours != theirs:
        return f"is {ours!r}, in eager {theirs!r}"
    return None
