"""Judge a candidate against a reference that it never sees: values, gradients, state, and every known trick.

The reference runs here, and the candidate answers as a `Witness`, in this process or in another one. Inputs come from
`input_cases`. A case that the reference refuses is no fault of the candidate, unless the user gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from torchwise.errors import BaselineError, InputError, UnsupportedError, format_error
from torchwise.plan.requirements import Property
from torchwise.records import Check, CheckName, Figure, Outcome
from torchwise.verify.allowances import (
    check_tolerance,
    forgive_flushing,
    forgive_overflow,
    with_overflow_of,
    with_strides_of,
)
from torchwise.verify.call_watch import DRAWS, CallWatch
from torchwise.verify.compare import Sides, compare
from torchwise.verify.held_outputs import HeldOutputs
from torchwise.verify.incoming import SUM, make_loss
from torchwise.verify.input_cases import Case, describe_inputs
from torchwise.verify.leaves import is_value, leaves_of
from torchwise.verify.noise_floor import BLIND, RUNS, Sensitivity
from torchwise.verify.observe import Observation, observe
from torchwise.verify.pair_noise import check_noise
from torchwise.verify.pair_state import changes_state, drop_private_state, explain_refusals
from torchwise.verify.pair_subject import PASSED, PairFindings, PairSubject, describe_place, make_case_record
from torchwise.verify.perturbation import PerturbRounding
from torchwise.verify.plain_data import with_number_tensors, with_plain_leaves
from torchwise.verify.properties import check_batch_invariant, check_deterministic, find_difference
from torchwise.verify.reference import Reference
from torchwise.verify.spot_check import OVERWRITTEN
from torchwise.verify.stochastic import is_stochastic
from torchwise.verify.verify import EPSILON, SUCCESSIVE
from torchwise.verify.witness import Question, Testimony, can_hold_answer, hold_answer, list_kinds, state_of
from torchwise.workload.bounds import count_calls_within_bounds, ends_process
from torchwise.workload.module_state import kept_state
from torchwise.workload.workload import Example

SETTLED_CASES, POISONED_CASES = 2, 3
"""Cases after whose calls the judge waits, besides the largest, and cases that are answered with memory full of NaN."""


def judge_pair(subject: PairSubject, cases: Sequence[Case]) -> PairFindings:
    """Compare a candidate with the reference on every case, until a check fails.

    Raises:
        BaselineError: the reference fails on inputs that the user gave.
    """
    findings = PairFindings()
    judge_of = _Judge(subject, findings, cases)
    for check in judge_of.run():
        findings.checks.append(check)
        if check.outcome is Outcome.FAIL:
            break
    return findings


def make_case_judge(subject: PairSubject) -> Callable[[Case], Check | None]:
    """Return a function that judges one case, for the search of the smallest one."""
    judge_of = _Judge(subject, PairFindings(), ())

    def check(case: Case) -> Check | None:
        judge_of.learn_state(case.example)
        return judge_of.check_case(case, 0)

    return check


class _Judge:
    """The checks of one pair."""

    def __init__(self, subject: PairSubject, findings: PairFindings, cases: Sequence[Case]) -> None:
        self._subject, self._witness, self._findings, self._cases = subject, subject.witness, findings, cases
        self._reference = Reference(subject.reference, training=subject.training)
        state = state_of(subject.reference)
        self._has_own_state = self._witness.adopt(state, takes=subject.shares_weights)
        self._shared = frozenset(state if self._has_own_state else ())
        self._is_stateful, self._incoming, self._is_training = False, SUM, subject.training
        self._held = HeldOutputs()
        self._largest = max(cases, key=lambda case: case.count_elements(), default=None)
        self._refused: dict[str, str] = {}
        self._own_faults: set[str] = set()
        self._kinds: tuple[str, ...] = ()
        self._seen: dict[tuple[int, int], tuple[Example, Observation | None, Observation | None]] = {}

    def run(self) -> Iterator[Check]:
        """Yield each check, cheapest first."""
        first = self._cases[0]
        self._refuse_broken_reference(first.example)
        self.learn_state(first.example)
        if state_of(self._subject.reference) and not self._has_own_state:
            self._findings.notes.append(
                "the candidate's weights have other names or shapes than the reference's, so each keeps its own: "
                "buffers and gradients of weights are not compared"
            )
        if self._draws_random_numbers(first.example):
            yield from check_noise(
                self._subject,
                self._findings,
                self._cases,
                self._observe_case,
                partial(self._find_side_effect, ignored=DRAWS),
                shares_weights=self._has_own_state,
            )
        else:
            yield from self._check_values()
            if Property.BITWISE in self._subject.properties:
                yield Check(CheckName.BITWISE, Outcome.PASS, "every bit is the reference's")
        yield from explain_refusals(self._refused)
        yield from self._check_properties()
        yield self._check_held_answers(first)
        yield self._check_replaced()
        self._findings.notes += [f"loading the candidate changes {one}" for one in self._witness.list_import_changes()]

    def learn_state(self, example: Example) -> None:
        """Find out whether the reference keeps state from call to call."""
        self._is_stateful = changes_state(self._subject.reference, example)

    def _refuse_broken_reference(self, example: Example) -> None:
        copy = example.clone()
        try:
            with kept_state(self._subject.reference, copy.args, copy.kwargs):
                outputs = self._subject.reference(*copy.args, **copy.kwargs)
        except Exception as error:  # a reference may raise anything
            raise BaselineError(
                f"the reference raised {format_error(error)}; its inputs were {describe_inputs(example)}"
            ) from error
        self._kinds = list_kinds(outputs)
        for name, leaf in leaves_of(outputs, "output").named:
            if not (isinstance(leaf, torch.Tensor) or is_value(leaf)):
                kind = type(leaf).__qualname__
                raise InputError(f"the reference's {name} is a {kind}, which cannot be compared: return tensors")

    def _draws_random_numbers(self, example: Example) -> bool:
        if self._subject.stochastic is not None:
            return self._subject.stochastic

        def run() -> Any:
            copy = example.clone()
            with torch.no_grad():
                return self._subject.reference(*copy.args, **copy.kwargs)

        return is_stochastic(run, self._subject.reference)[0]

    # Values

    def _check_values(self) -> Iterator[Check]:
        worst: Check | None = None
        for number, case in enumerate(self._cases):
            check = self.check_case(case, number)
            if check is None:
                continue
            if case.is_beyond:
                if check.outcome is Outcome.FAIL:
                    self._findings.notes.append(
                        f"beyond the example's values it differs ({describe_place(case)}): describe inputs with --input"
                    )
                continue
            self._findings.cases.append(make_case_record(case, check))
            if describe_place(case) in self._refused and check.outcome is Outcome.NOT_COMPARABLE:
                continue  # told by `_check_refusals`
            if check.outcome is Outcome.FAIL:
                self._findings.failing = case
                yield replace(check, detail=f"{describe_place(case)}: {check.detail}")
                return
            if check.outcome is Outcome.NOT_COMPARABLE:
                if case.is_given:
                    yield replace(check, detail=f"{describe_place(case)}: {check.detail}")
                    return
                self._findings.notes.append(f"not comparable with {describe_place(case)}: {check.detail}")
            elif worst is None or (check.error or 0.0) > (worst.error or 0.0):
                worst = check
        compared = [one for one in self._findings.cases if one.outcome is Outcome.PASS]
        if worst is None:
            yield Check(CheckName.VALUES, Outcome.NOT_COMPARABLE, "no case could be compared")
        else:
            yield replace(worst, figures={**worst.figures, Figure.SAMPLES: len(compared)})
        for name in (CheckName.LATE_WORK, CheckName.MEMORY, CheckName.REPEATED_CALLS):
            yield Check(name, Outcome.PASS, PASSED[name])

    def check_case(self, case: Case, seed: int) -> Check | None:
        """Return the check of a case that fails, or that of its values. Return None if both sides refuse it."""
        self._seen.clear()
        self._set_case(case)
        native, _ = self._find_right(case.example, seed)
        if native is None:
            return self._compare_refusals(case, seed)
        question = Question(
            case.example,
            seed,
            self._is_training,
            case.incoming,
            native.calls,  # as many as a cache has room for
            restores=self._is_stateful,
            settles=seed < SETTLED_CASES or case is self._largest,
            poisons=0 < len(self._cases) - POISONED_CASES <= seed,
        )
        told = self._witness.answer(question)
        check = self._compare(case, seed, native, told)
        if check.outcome is Outcome.FAIL or told.observation is None:
            return check
        return self._find_side_effect(case, told) or self._check_hidden_state(case, seed, question) or check

    def _find_side_effect(self, case: Case, told: Testimony, ignored: str = "") -> Check | None:
        """Return a check that fails if a call did more than to answer, and more than the reference's calls do."""
        if told.late:
            detail = "an output changes after the call returned: other threads or streams still write to it"
            return Check(CheckName.LATE_WORK, Outcome.FAIL, detail)
        if case.is_given and told.kinds != self._kinds:
            detail = f"the outputs are of class {', '.join(told.kinds)}, the reference's {', '.join(self._kinds)}"
            return Check(CheckName.STRUCTURE, Outcome.FAIL, detail)
        faults = [fault for fault in told.faults if fault not in self._own_faults and fault != ignored]
        return Check(CheckName.SURROUNDINGS, Outcome.FAIL, faults[0]) if faults else None

    def _set_case(self, case: Case) -> None:
        self._incoming, self._is_training = case.incoming, self._subject.training and case.needs_gradients

    def _check_hidden_state(self, case: Case, seed: int, question: Question) -> Check | None:
        """Check other values in the same memory, the old values again, and memory full of NaN."""
        others = [] if self._is_stateful or case.redraw is None else [case.redraw, *case.near]
        others = [one for one in others if self._find_right(one, seed)[0] is not None]
        told = [self._witness.answer(replace(question, then=o, settles=False, poisons=False)) for o in others]
        seen = [(o, t.again, t, "of other values in the same memory") for o, t in zip(others, told, strict=True)]
        seen += [(case.example, t.observation, t, "of the same values once more") for t in told[:1]]
        for example, observation, one, which in seen:
            if found := self._find_fault(replace(case, example=example), seed, replace(one, observation=observation)):
                return replace(found, name=CheckName.REPEATED_CALLS, detail=f"{which}, {found.detail}")
        if case.is_given and not question.poisons:
            poisoned = self._witness.answer(replace(question, poisons=True, settles=False))
            if found := self._find_fault(case, seed, poisoned):
                return replace(found, name=CheckName.MEMORY, detail=f"with memory full of NaN, {found.detail}")
        return None

    def _find_fault(self, case: Case, seed: int, told: Testimony) -> Check | None:
        """Return the check that fails, or None if nothing is wrong or the reference refuses the inputs."""
        native, _ = self._find_right(case.example, seed)
        found = None if native is None else self._compare(case, seed, native, told)
        return found if found is not None and found.outcome is Outcome.FAIL else None

    def _find_right(self, example: Example, seed: int) -> tuple[Observation | None, Observation | None]:
        """Return the reference's observation and that in float64. Those of one case are kept."""
        key = id(example), seed
        if key not in self._seen:
            native = self._observe_reference(example, seed)
            exact = None
            if native is not None and self._subject.tolerance is None:
                exact = self._reference.observe_example(example, seed, native.calls, make_loss(self._incoming))
            self._seen[key] = example, native, exact
        return self._seen[key][1:]

    def _observe_case(self, case: Case, seed: int) -> Observation | None:
        self._set_case(case)
        return self._observe_reference(case.example, seed)

    def _observe_reference(self, example: Example, seed: int, call: Any = None) -> Observation | None:
        original, kept = self._subject.reference, list[Any]()
        watch, wanted = CallWatch(call or original), SUCCESSIVE if self._is_stateful else 1
        how: dict[str, Any] = {"training": self._is_training, "loss": make_loss(self._incoming), "kept": kept}
        try:
            if not (calls := count_calls_within_bounds(original, example, wanted)):
                return None
            found = observe(watch, original, example, seed=seed, calls=calls, may_end=True, **how)
            self._held.hold(*kept)
            self._own_faults.update(watch.faults)
            return with_plain_leaves(found)
        except Exception:  # a reference may refuse made-up inputs in any way
            return None

    def _compare_refusals(self, case: Case, seed: int) -> Check | None:
        """Compare a candidate with a reference that refuses a case."""
        if case.is_given:
            return Check(CheckName.ANSWER, Outcome.NOT_COMPARABLE, "the reference fails on it")
        if ends_process():  # which an input that no operator takes may do
            return None
        told = self._witness.answer(Question(case.example, seed, self._is_training))
        if told.observation is not None:
            self._findings.notes.append(f"the reference refuses {describe_place(case)}, and the candidate answers it")
        return None

    def _compare(self, case: Case, seed: int, native: Observation, told: Testimony) -> Check:
        subject = self._subject
        if told.observation is None and told.refuses:
            if not case.is_beyond:
                self._refused.setdefault(describe_place(case), told.error)
            return Check(CheckName.ANSWER, Outcome.NOT_COMPARABLE, f"the candidate refuses it: {told.error}")
        if told.observation is None:
            return Check(CheckName.ANSWER, Outcome.FAIL, f"the candidate {told.error or 'does not answer'}")
        candidate = drop_private_state(
            with_plain_leaves(told.observation), native, self._shared, has_own_state=self._has_own_state
        )
        if case.is_layout:
            candidate = with_strides_of(candidate, native)
        if Property.BITWISE in subject.properties and (found := find_difference(candidate, native)):
            return Check(CheckName.BITWISE, Outcome.FAIL, found[0])
        candidate, plain, native = with_number_tensors(candidate, native), native, with_number_tensors(native, native)
        if subject.tolerance is not None:
            return check_tolerance(candidate, native, subject.tolerance)
        is_plain = subject.floor is subject.reference
        floor = plain if is_plain else self._observe_reference(case.example, seed, subject.floor)
        if floor is None:
            detail = f"the reference fails at precision {subject.precision}"
            return Check(CheckName.VALUES, Outcome.NOT_COMPARABLE, detail)
        _, exact = self._find_right(case.example, seed)
        floor = with_number_tensors(floor, plain)
        exact = None if exact is None else with_number_tensors(with_plain_leaves(exact), plain)
        candidate = forgive_overflow(candidate, native, exact)
        if case.is_tiny:
            candidate = forgive_flushing(candidate, floor)
        exact = with_overflow_of(native, exact)
        moved = Sensitivity(partial(self._run_in_context, case.example, seed, plain))
        sides, epsilon = Sides(candidate, native, floor, exact), EPSILON.get(subject.precision)
        check = compare(sides, epsilon, moved)[-1]
        if check.name == CheckName.VALUES and check.outcome is Outcome.FAIL and check.cause is None:
            check = self._explain_by_rounding(case.example, seed, sides, epsilon, plain) or check
        if not case.is_given and check.outcome is Outcome.FAIL and (check.floor or 0.0) >= BLIND:
            detail = f"{check.detail}: the reference itself is too far off to tell"
            return replace(check, outcome=Outcome.NOT_COMPARABLE, detail=detail)
        return check

    def _explain_by_rounding(
        self, example: Example, seed: int, sides: Sides, epsilon: float | None, plain: Observation
    ) -> Check | None:
        """Return a check that passes if the reference errs as far once its roundings are perturbed, or None.

        Few elements that nearly cancel, such as a gradient behind a normalisation of two, err by chance.
        """
        for run in range(1, RUNS + 1):
            try:
                leaves = self._run_in_context(example, seed, plain, PerturbRounding(1.0, run))
            except Exception:  # a reference may raise anything inside a mode
                return None
            floor = replace(sides.floor, leaves=tuple((name, leaves[name]) for name, _ in sides.floor.leaves))
            check = compare(replace(sides, floor=floor), epsilon, Sensitivity())[-1]
            if check.outcome is Outcome.PASS:
                return check
        return None

    def _run_in_context(self, example: Example, seed: int, plain: Observation, under: Any) -> Any:
        floor, original = self._subject.floor, self._subject.reference
        found = observe(
            floor,
            original,
            example,
            seed=seed,
            training=self._is_training,
            under=under,
            calls=plain.calls,
            loss=make_loss(self._incoming),
        )
        return dict(with_number_tensors(with_plain_leaves(found), plain).leaves)

    # Promises

    def _check_properties(self) -> Iterator[Check]:
        properties = self._subject.properties
        examples = [case.example for case in self._cases if case.is_given]
        if Property.DETERMINISTIC in properties:
            yield check_deterministic(self._observe_candidate, examples)
        if Property.BATCH_INVARIANT in properties:
            yield check_batch_invariant(self._observe_candidate, examples, other_sizes=self._observe_candidate)

    def _observe_candidate(self, example: Example, seed: int) -> Observation:
        """Return the candidate's observation alone.

        Raises:
            UnsupportedError: it gives none.
        """
        told = self._witness.answer(Question(example, seed, self._subject.training, restores=True))
        if told.observation is None:
            raise UnsupportedError(f"the candidate {told.error}")
        return told.observation

    def _check_held_answers(self, first: Case) -> Check:
        other = first.redraw or first.example
        is_full = self._is_stateful and not can_hold_answer(self._subject.reference, first.example, other)
        second = None if is_full else other
        if problem := self._witness.hold(first.example, second):
            with kept_state(self._subject.reference):
                own = self._held.find_change() or hold_answer(self._subject.reference, first.example, second)
            if own in (problem, OVERWRITTEN):  # one that shares memory may not be overwritten for all that
                return Check(CheckName.RETAINED_OUTPUTS, Outcome.PASS, "outputs change as the reference's")
            return Check(CheckName.RETAINED_OUTPUTS, Outcome.FAIL, problem)
        return Check(CheckName.RETAINED_OUTPUTS, Outcome.PASS, "outputs stay as they are while later calls are made")

    def _check_replaced(self) -> Check:
        if replaced := self._witness.list_replaced():
            detail = f"the candidate replaces {replaced[0]}, which others use"
            return Check(CheckName.SURROUNDINGS, Outcome.FAIL, detail)
        return Check(CheckName.SURROUNDINGS, Outcome.PASS, "timers, PyTorch's functions and settings are as they were")
