"""Compare two observations against a third: is the candidate no further from the reference than eager is?

A candidate passes if each tensor's error is within a stated factor of eager's, plus a few roundings (`deviation`).
Eager's error must be that of rounding (`noise_floor`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.records import Check, CheckCause, CheckName, Figure, Outcome
from torchwise.verify.deviation import Errors
from torchwise.verify.leaves import is_same_code, is_unread, is_value
from torchwise.verify.noise_floor import BLIND, Bounds, NoiseFloor, Sensitivity
from torchwise.verify.observe import Observation


@dataclass(frozen=True, slots=True)
class Sides:
    """One call, as each side made it.

    Attributes:
        candidate: the observation to judge.
        native: eager as it is: decides structure, dtypes, shapes, strides and aliases.
        floor: eager at the candidate's precision: decides how large an error is normal.
        reference: the model in float64, or None if it cannot run. Then `native` replaces it.
    """

    candidate: Observation
    native: Observation
    floor: Observation
    reference: Observation | None

    @property
    def exact(self) -> dict[str, Any]:
        """The leaves to compare with, by name."""
        return dict((self.reference or self.native).leaves)


def compare(sides: Sides, epsilon: float | None, moved: Sensitivity) -> list[Check]:
    """Compare a candidate's observation with the others.

    Args:
        sides: the observations.
        epsilon: spacing at 1 of the precision that the candidate computes in, or None for each tensor's own dtype.
        moved: how far eager at the candidate's precision moves by rounding.
    """
    structure = check_structure(sides.candidate, sides.native)
    if structure.outcome is not Outcome.PASS:
        return [structure]
    values = _values(sides, epsilon, moved)
    if values.outcome is Outcome.NOT_COMPARABLE and is_eagers_own(sides.candidate, sides.native):
        values = Check(CheckName.VALUES, Outcome.PASS, f"equal to eager bit by bit, where {values.detail}", 0.0, 0.0)
    return [structure, values]


def is_eagers_own(candidate: Observation, native: Observation) -> bool:
    """Whether every value is eager's, bit by bit.

    If the model decides by rounding (how many boxes are above a threshold), float64 may decide otherwise. Then no other
    noise floor is left.
    """
    pairs = zip(candidate.leaves, native.leaves, strict=True)
    return all(
        value.dtype == expected.dtype and torch.equal(value, expected)
        if isinstance(value, torch.Tensor) and isinstance(expected, torch.Tensor)
        else is_value(value) and type(value) is type(expected) and value == expected
        for (_, value), (_, expected) in pairs
    )


def check_structure(candidate: Observation, native: Observation) -> Check:
    """Compare everything but values: paths, types, dtypes, shapes, strides, devices, and shared memory."""

    def make_failure(detail: str, cause: CheckCause | None = None) -> Check:
        return Check(CheckName.STRUCTURE, Outcome.FAIL, detail, cause=cause)

    if candidate.form != native.form:
        return make_failure(f"the outputs differ in structure: {_first_difference(candidate.form, native.form)}")
    leaves, expected = dict(candidate.leaves), dict(native.leaves)
    if list(leaves) != list(expected):
        odd = sorted(set(leaves) ^ set(expected)) or ["their order"]
        return make_failure(f"the outputs differ in structure at {odd[0]}")
    for name, leaf in leaves.items():
        if problem := _form_problem(leaf, expected[name]):
            return make_failure(f"{name} {problem}", CheckCause.NONE_IN_EAGER if expected[name] is None else None)
    for name, leaf in leaves.items():
        if _has_other_strides(leaf, expected[name]):
            strides = tuple(leaf.stride()), tuple(expected[name].stride())
            # Buffers and inputs are never laid out again.
            kind = CheckName.STRIDES if name in candidate.outputs else CheckName.STRUCTURE
            return Check(kind, Outcome.FAIL, f"{name} has strides {strides[0]}, in eager {strides[1]}")
    if candidate.aliases != native.aliases:
        return make_failure(
            f"outputs share memory with inputs at {_describe_pairs(candidate)}, in eager at {_describe_pairs(native)}"
        )
    if shared := candidate.shared - native.shared:
        one, other = min(shared)
        return make_failure(f"outputs {one} and {other} share memory, in eager they do not")
    detail = f"{len(leaves)} values agree in form, dtype, shape, strides and aliasing"
    return Check(CheckName.STRUCTURE, Outcome.PASS, detail, figures={Figure.SAMPLES: len(leaves)})


def _first_difference(candidate: tuple[str, ...], eager: tuple[str, ...]) -> str:
    """Return the first difference of two forms. Outer containers come first, then arrays and objects in the outputs."""
    pairs = itertools.zip_longest(candidate, eager, fillvalue="nothing")
    own, expected = next((one, other) for one, other in pairs if one != other)
    return f"{own}, in eager {expected}"


def _describe_pairs(observation: Observation) -> str:
    return ", ".join(f"output {o} / input {i}" for o, i in sorted(observation.aliases)) or "none"


def _form_problem(value: Any, expected: Any) -> str | None:
    if not isinstance(expected, torch.Tensor):
        if isinstance(value, torch.Tensor) or type(value) is not type(expected):
            return f"is of type {type(value).__name__}, in eager {type(expected).__name__}"
        return None
    if not isinstance(value, torch.Tensor):
        return f"is of type {type(value).__name__}, in eager a tensor"
    for attribute in ("dtype", "shape", "device", "layout"):
        if getattr(value, attribute) != getattr(expected, attribute):
            return f"has {attribute} {getattr(value, attribute)}, in eager {getattr(expected, attribute)}"
    return None


def _has_other_strides(value: Any, expected: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return _strides(value) != _strides(expected)


def _strides(tensor: torch.Tensor) -> list[int]:
    """Return the strides that mean anything: those of dimensions longer than 1."""
    return [s for size, s in zip(tensor.shape, tensor.stride(), strict=True) if size > 1] if tensor.numel() else []


def _values(sides: Sides, epsilon: float | None, moved: Sensitivity) -> Check:
    candidate, has_reference = sides.candidate, sides.reference is not None
    worst: Errors | None = None
    normal, limit, unseen, count = Errors(0.0, 0.0), 0.0, "", 0
    undecided: Check | None = None
    plain, floors, references = dict(sides.native.leaves), dict(sides.floor.leaves), sides.exact
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
        bounds = Bounds.from_tensor(leaf, epsilon, has_reference=has_reference)
        judged = NoiseFloor(name, against, bounds, moved).judge(leaf, floors[name])
        if judged.outcome is not Outcome.PASS:
            detail, figures = f"{name} {judged.detail}", {Figure.LIMIT: judged.limit}
            check = Check(
                CheckName.VALUES, judged.outcome, detail, judged.errors.rms, judged.usual.rms, judged.cause, figures
            )
            if judged.outcome is Outcome.FAIL:
                return check
            if undecided is None or undecided.cause == CheckCause.HIDDEN_BY_ROUNDING:
                undecided = check
        count += 1
        key = judged.usual.rms < BLIND, judged.errors.rms  # the error of a tensor that is all rounding says nothing
        if worst is None or key > (normal.rms < BLIND, worst.rms):
            worst, normal, limit = judged.errors, judged.usual, judged.limit
    # Reported last: comparable values may be wrong, which says more. A value that rounding hides may be left to a
    # tolerance, so any other reason comes before it.
    is_hidden = undecided is not None and undecided.cause == CheckCause.HIDDEN_BY_ROUNDING
    if unseen and (undecided is None or is_hidden):
        return Check(CheckName.VALUES, Outcome.NOT_COMPARABLE, unseen)
    if undecided:
        return undecided
    if worst is None:
        return Check(CheckName.VALUES, Outcome.PASS, "every value is equal (there is no tensor among them)")
    compared_with = "the float64 reference" if has_reference else "eager (there is no float64 reference)"
    detail = f"error {worst.rms:.2g} against {compared_with}, eager's own is {normal.rms:.2g}"
    figures = {Figure.LIMIT: limit, Figure.SAMPLES: count}
    return Check(CheckName.VALUES, Outcome.PASS, detail, worst.rms, normal.rms, figures=figures)


def _why_unseen(leaf: Any) -> str:
    if is_unread(leaf):
        return "computes nothing before it is read: call the model in a function that returns a list of what it yields"
    return "cannot be looked into: return a dataclass, tensors or arrays"


def _plain_problem(value: Any, expected: Any) -> str | None:
    if isinstance(value, float) and isinstance(expected, float):
        close = math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-16) or (
            math.isnan(value) and math.isnan(expected)
        )
        return None if close else f"is {value!r}, in eager {expected!r}"
    if is_value(value) and value != expected:
        return f"is {value!r}, in eager {expected!r}"
    return None
