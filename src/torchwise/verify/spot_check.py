"""Compare single answers: one in a live program with the original model's, a first one, and one that is kept.

The plan was verified before. A spot check finds problems that a verification on examples cannot: other inputs, another
state of the hardware, a fault that came with time. False alarms must be very rare, as one disables the plan. So
differences that rounding can explain pass.

A program also uses the answers that a plan gives while it compiles, and they may be wrong. Compiled complex
`linalg.pinv` is such a case (torch 2.13, https://github.com/pytorch/pytorch/issues/198118): its first call runs in a
context that changes the answers of operators. And an answer that a program keeps must not change when the next call is
made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.compare import check_structure
from torchwise.verify.deviation import RMS_FACTOR, WORST_FACTOR, errors_of, is_rounded, legible, tolerance_of
from torchwise.verify.leaves import is_value, leaves_of
from torchwise.verify.noise_floor import Sensitivity
from torchwise.verify.observe import Observation, observation_of
from torchwise.workload import pytree
from torchwise.workload.bounds import takes_within_bounds
from torchwise.workload.module_state import kept_state
from torchwise.workload.workload import Example

FLIPPED = 0.05
"""Share of whole numbers and booleans that may differ: a rounding flips an argmax, or a comparison near a threshold."""
OVERWRITTEN = "an output held by the caller was overwritten by a later call"
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


def check_retained_outputs(
    call: Callable[..., Any], eager: Callable[..., Any], first: Example, second: Example, *, is_stateful: bool = False
) -> Check:
    """Keep the outputs for `first` while `second` is answered twice. They must not change.

    Calls of a model that keeps state go on from each other. If its cache has no room for so many, each begins from the
    same state.

    If both inputs are alike, values do not show an overwritten output. So memory shared between the answers counts too,
    unless eager's answers also share memory (a model may return a constant).
    """
    state_of = eager if is_stateful and not has_room(eager, first, second, second) else None
    try:
        same, shares = _hold(call, first, second, state_of)
    except RuntimeError as error:  # PyTorch's CUDA-graph trees raise on the access itself
        _hold(eager, first, second, state_of)  # raises, too, if the candidate is not at fault
        return _make_check(Outcome.FAIL, f"an output cannot be read after the next call: {error}"[:300])
    if same and not shares:
        return _make_check(Outcome.PASS, "outputs stay as they are while later calls are made")
    stays, shared = _hold(
        eager, first, second, state_of
    )  # a model may return the very memory that its next call writes to
    if not same and stays:
        return _make_check(Outcome.FAIL, OVERWRITTEN)
    if shares and not shared:
        return _make_check(Outcome.FAIL, "answers of different calls lie in the same memory")
    return _make_check(Outcome.PASS, "outputs change as in eager")


def has_room(eager: Callable[..., Any], *examples: Example) -> bool:
    """Whether a model can answer some calls one after the other. Its state is restored."""
    try:
        with kept_state(eager), torch.no_grad():
            copies = [example.clone() for example in examples]
            return all(takes_within_bounds(eager, copy.args, copy.kwargs) for copy in copies)
    except Exception:  # a model may raise anything, such as where a cache is full
        return False


def _make_check(outcome: Outcome, detail: str) -> Check:
    return Check(CheckName.RETAINED_OUTPUTS, outcome, detail)


def _hold(call: Callable[..., Any], first: Example, second: Example, state_of: Any) -> tuple[bool, bool]:
    """Return whether the outputs for `first` stay the same while `second` is answered, and share its memory."""
    outputs = _run(call, first, state_of)
    copies = [t.detach().clone() for t in outputs]
    later = [*_run(call, second, state_of), *_run(call, second, state_of)]
    return all(pytree.equal(now, then) for now, then in zip(outputs, copies, strict=True)), _share(outputs, later)


def _run(call: Callable[..., Any], example: Example, state_of: Any) -> list[torch.Tensor]:
    example = example.clone()
    kept = nullcontext() if state_of is None else kept_state(state_of, example.args, example.kwargs)
    with torch.no_grad(), kept:
        return leaves_of(call(*example.args, **example.kwargs)).tensors


def _share(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    places = {place_of(t) for t in some if t.numel()} - {0}
    return any(place_of(t) in places for t in others if t.numel())


def place_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory, or 0 if it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and other tensors without one storage
        return 0


class FirstAnswer:
    """A call that keeps its first answer, in the host's memory, and the time of that answer.

    `observe` makes an observation of an answer, by default of its outputs alone.
    """

    def __init__(self, call: Callable[[], Any], observe: Callable[[Any], Observation] | None = None) -> None:
        self.observation: Observation | None = None
        self.at = math.inf
        self._call = call
        self._observe = observe or _observe_outputs

    def __call__(self) -> Any:
        """Call it."""
        answer = self._call()
        if self.observation is None:
            observation, self.at = self._observe(answer), time.monotonic()
            self.observation = replace(
                observation, leaves=tuple((name, _to_host(leaf)) for name, leaf in observation.leaves)
            )
        return answer


def very_first(answers: Sequence[FirstAnswer]) -> tuple[int, Observation] | None:
    """Return the number and the answer of the earliest of these calls, or None if none was answered."""
    answered = [
        (answer.at, number, answer.observation)
        for number, answer in enumerate(answers)
        if answer.observation is not None
    ]
    return min(answered, key=lambda one: one[0])[1:] if answered else None


def check_first(first: Observation, later: Observation, error: float, *, is_right: bool = True) -> Check:
    """Compare the answer of a first call with that of a later one, which has this error.

    Both are on the same inputs and from the same state. `is_right` is whether the later answer was found right.
    """
    later_ones = "of later ones it is right" if is_right else "unlike those of later ones"
    known = dict(later.leaves)
    for name, leaf in first.leaves:
        if found := differs(leaf, known.get(name), error):
            return Check(CheckName.FIRST_CALL, Outcome.FAIL, f"of the first call {name} {found}, {later_ones}")
    return Check(CheckName.FIRST_CALL, Outcome.PASS, "the first call answers as later ones do")


def _observe_outputs(answer: Any) -> Observation:
    return observation_of(answer, ())


def _to_host(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf
