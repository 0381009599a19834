"""Judge a candidate whose reference draws random numbers: distributions on several inputs, and all that stays still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from torchwise.plan.requirements import Property
from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.compare import Sides, compare
from torchwise.verify.input_cases import Case, describe_inputs
from torchwise.verify.noise_floor import Sensitivity
from torchwise.verify.observe import Observation
from torchwise.verify.pair_state import BUFFER, GRADIENT, STATE, is_of_weight
from torchwise.verify.pair_subject import PairFindings, PairSubject
from torchwise.verify.properties import find_difference
from torchwise.verify.stochastic import MAX_CALLS, MIN_CALLS, Samples, collect, judge
from torchwise.verify.verify import EPSILON
from torchwise.verify.witness import Question, Testimony, Witness, answer_all, live_state_of
from torchwise.workload.module_state import kept_state

CASES = 4
"""Inputs on which distributions are compared."""
QUESTIONS = 4
"""Questions that ask for the calls of a series, as each has a time limit."""
MAX_S = 60.0
"""Seconds from which on no more inputs are tried."""

Observe = Callable[[Case, int], Observation | None]
FindSideEffect = Callable[[Case, Testimony], Check | None]


def check_noise(
    subject: PairSubject,
    findings: PairFindings,
    cases: Sequence[Case],
    observe: Observe,
    find_side_effect: FindSideEffect,
    *,
    shares_weights: bool,
) -> Iterator[Check]:
    """Yield the checks on several cases, then those of the promises.

    Args:
        subject: the pair.
        findings: gets a note for inputs that were not tried.
        cases: all cases, the user's first.
        observe: observes the reference on a case from a seed, or returns None if it refuses the case.
        find_side_effect: returns a check that fails if a call did more than to answer, or None.
        shares_weights: whether gradients of weights are compared.
    """
    start, passed = time.monotonic(), {}
    chosen = choose_cases(cases)
    for number, case in enumerate(chosen):
        if number and time.monotonic() - start > MAX_S:
            findings.notes.append(f"the noise was compared on {number} inputs alone, as its calls take long")
            break
        checks = _check_case(subject, case, observe, find_side_effect, len(chosen), shares_weights=shares_weights)
        for check in checks:
            if check.outcome is Outcome.FAIL:
                findings.failing = None
                yield replace(check, detail=f"{case.name} ({describe_inputs(case.example)}): {check.detail}")
                return
            if case.is_given or check.name == CheckName.ANSWER:  # the answer to a case may be refused
                passed[check.name] = check
    yield from passed.values()
    yield from _list_unchecked(subject)


def choose_cases(cases: Sequence[Case]) -> list[Case]:
    """Return the first case, one of the most elements, one of other sizes or values, and one in an unusual layout."""
    rest = [case for case in cases[1:] if not case.is_beyond and not case.is_tiny]
    laid = [case for case in rest if case.is_layout]
    sized = [case for case in rest if not case.is_layout and case.count_elements() > 1 and not case.is_given]
    largest = max(sized, key=lambda case: case.count_elements(), default=None)
    first = next((case for case in sized if case is not largest), None)
    return [cases[0], *(case for case in (largest, first, *laid[:1]) if case is not None)][:CASES]


def _check_case(
    subject: PairSubject,
    case: Case,
    observe: Observe,
    find_side_effect: FindSideEffect,
    share: int,
    *,
    shares_weights: bool,
) -> Iterator[Check]:
    natives = [observe(case, seed) for seed in (0, 1)]
    native = natives[0]
    if native is None or natives[1] is None:
        return
    question = Question(case.example, 0, subject.training, case.incoming, settles=case.is_given)
    told = subject.witness.answer(question)
    if told.observation is None and told.refuses:
        yield Check(CheckName.ANSWER, Outcome.NOT_COMPARABLE, f"the candidate refuses it: {told.error}")
        return
    if told.observation is None:
        yield Check(CheckName.ANSWER, Outcome.FAIL, f"the candidate {told.error or 'does not answer'}")
        return
    if found := find_side_effect(case, told):
        yield found
        return
    yield from _compare_still(subject, told.observation, native, natives[1], shares_weights=shares_weights)
    own = _ask_for_noise(subject.witness, replace(question, seed=2, settles=False))
    if own is None:
        yield Check(CheckName.ANSWER, Outcome.FAIL, "the candidate gives no answers to calls in a row")
        return
    run = partial(answer_all, subject.floor, question, subject.reference if shares_weights else None)
    with kept_state(subject.reference):
        calibration, tensor_of = collect(run, MIN_CALLS, seed=1)
        eager, _ = collect(run, MAX_CALLS, seed=3)
    if own.shape != eager.shape:
        yield Check(CheckName.STRUCTURE, Outcome.FAIL, "the answers have another number of elements")
        return
    is_exact = subject.precision == "native"
    yield from judge(own, eager, calibration, tensor_of, exact=is_exact, share=share)


def _compare_still(
    subject: PairSubject, candidate: Observation, native: Observation, other: Observation, *, shares_weights: bool
) -> Iterator[Check]:
    """Compare the form of all, and the values that do not depend on the seed: written inputs and buffers."""
    known, own = {name for name, _ in native.leaves}, dict(candidate.leaves)
    private, shared = (STATE, BUFFER, GRADIENT), live_state_of(subject.reference) if shares_weights else ()
    leaves = tuple(
        (n, v) for n, v in candidate.leaves if n in known or not n.startswith(private) or is_of_weight(n, shared)
    )
    expected = tuple((n, v) for n, v in native.leaves if n in own or not n.startswith(private))
    candidate, native = replace(candidate, leaves=leaves), replace(native, leaves=expected)
    check = compare(Sides(candidate, native, native, None), None, Sensitivity())[0]
    yield check
    if check.outcome is not Outcome.PASS:
        return
    varied = dict(other.leaves)
    still = {
        name
        for name, leaf in native.leaves
        if name not in native.outputs
        and not find_difference(_only(native, name, leaf), _only(other, name, varied[name]))
    }
    parts = [replace(one, leaves=tuple(pair for pair in one.leaves if pair[0] in still)) for one in (candidate, native)]
    if still:
        sides = Sides(parts[0], parts[1], parts[1], None)
        yield compare(sides, EPSILON.get(subject.precision), Sensitivity())[-1]


def _only(one: Observation, name: str, leaf: object) -> Observation:
    return replace(one, leaves=((name, leaf),))


def _ask_for_noise(witness: Witness, question: Question) -> Samples | None:
    """Return the answers of calls in a row, which several questions ask for, or None if there are none."""
    calls = MAX_CALLS // QUESTIONS
    parts = [
        witness.collect_noise(replace(question, seed=question.seed + 100 * n, calls=calls)) for n in range(QUESTIONS)
    ]
    is_whole = all(part.shape == parts[0].shape and len(part) == calls for part in parts)
    return np.concatenate(parts) if is_whole and parts[0].size else None


def _list_unchecked(subject: PairSubject) -> Iterator[Check]:
    """Yield the promises that random answers cannot keep."""
    if Property.BITWISE in subject.properties:
        yield Check(CheckName.BITWISE, Outcome.NOT_COMPARABLE, "answers are random, so no bits are the reference's")
    if subject.tolerance is not None:
        detail = "answers are random: their distributions are compared, and no tolerance applies to them"
        yield Check(CheckName.VALUES, Outcome.NOT_COMPARABLE, detail)
