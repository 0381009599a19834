"""Run all checks of one candidate, cheapest first. The first that fails ends them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torchwise.errors import UnsupportedError, format_error
from torchwise.records import Check, CheckCause, CheckName, Outcome, Verdict
from torchwise.verify.compare import Sides, check_structure, compare
from torchwise.verify.deviation import errors_of
from torchwise.verify.noise_floor import Sensitivity
from torchwise.verify.observe import Observation, draws, observe
from torchwise.verify.reference import Reference, compare_with_cpu, is_doubtful, to_cpu
from torchwise.verify.spot_check import check_first, check_retained_outputs
from torchwise.verify.stochastic import check_noise, make_call
from torchwise.workload.bounds import count_calls_within_bounds, takes_within_bounds
from torchwise.workload.module_state import State, kept_state
from torchwise.workload.workload import Example, Workload

EPSILON = {"tf32": 2.0**-10, "bf16": 2.0**-7, "autocast_bf16": 2.0**-7, "autocast_fp16": 2.0**-10}
"""Spacing at 1 of the numbers that a precision computes in. "native" computes in each tensor's own dtype."""
MATCHED = 1e-2
"""Error of eager against the reference above which a stochastic model's noise was evidently not matched."""


SUCCESSIVE = 4
"""Successive calls of a model that keeps state: only those that go on from a plan's own state verify that it is right.
"""
MAX_WINDOW = 64
"""Items of a deque of bounded length for which there are more."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The candidate to verify, with everything it is compared with.

    Attributes:
        workload: the model as it is, and its examples.
        candidate: the candidate to judge.
        floor: eager at the candidate's precision, or the model itself at native precision.
        precision: the candidate's precision.
        reproducible: for a stochastic model, the candidate drawing eager's own random numbers, or None.
        stochastic: whether the model draws random numbers.
        training: whether gradients are compared too.
        stateful: whether a call changes the state that the next one starts from.
        first: the candidate's first answer to each example, or empty if there was none.
        is_quantized: whether numbers are rounded to few bits on the way, so that the last bit of a sum may move a
            result as bfloat16 does.
    """

    workload: Workload
    candidate: Callable[..., Any]
    floor: Callable[..., Any]
    precision: str = "native"
    reproducible: Callable[..., Any] | None = None
    stochastic: bool = False
    training: bool = False
    stateful: bool = False
    first: Sequence[Observation | None] = ()
    is_quantized: bool = False

    @property
    def epsilon(self) -> float | None:
        """Spacing at 1 of the coarsest numbers on the way, or None for those of each tensor's own dtype."""
        return EPSILON["bf16"] if self.is_quantized else EPSILON.get(self.precision)

    @property
    def module(self) -> torch.nn.Module | None:
        """The model, if it is a module."""
        return self.workload.module

    def reference(self, device: str | None = None) -> Reference:
        """Return the model in float64, on another device if one is named."""
        return Reference(self.workload.call, training=self.training, device=device)


def verify(subject: Subject, *, extra_draws: int = 2, noise_budget_s: float = 5.0) -> Verdict:
    """Judge a candidate, without changing the model.

    `extra_draws` are draws of the inputs beyond the examples themselves, and `noise_budget_s` the seconds for the calls
    that the distribution tests need.
    """
    checks: list[Check] = []
    with kept_state(subject.workload.call):
        for check in _checks(subject, extra_draws, noise_budget_s):
            checks.append(check)
            if check.outcome is Outcome.FAIL:
                break
    return Verdict(tuple(checks))


def _checks(subject: Subject, extra_draws: int, noise_budget_s: float) -> Iterator[Check]:
    inputs = draws(subject.workload, extra_draws)
    if not subject.stochastic:
        yield from _deterministic(subject, subject.candidate, inputs)
    else:
        yield from _noisy(subject, inputs, noise_budget_s)
    eager = subject.workload.call
    yield check_retained_outputs(subject.candidate, eager, inputs[0], inputs[-1], is_stateful=subject.stateful)


def _deterministic(subject: Subject, candidate: Callable[..., Any], inputs: list[Example]) -> Iterator[Check]:
    reference = subject.reference()
    for position, example in enumerate(inputs):
        native = _run(subject, subject.workload.call, example, position)
        if native is None:
            if position >= len(subject.workload.examples):
                continue  # the model refuses a draw that was made up for it
            yield Check(CheckName.VALUES, Outcome.NOT_COMPARABLE, _why_unseen(subject, example, position))
            return
        is_plain = subject.floor is subject.workload.call
        floor = native if is_plain else _run(subject, subject.floor, example, position, native.calls)
        if floor is None:
            yield Check(CheckName.VALUES, Outcome.NOT_COMPARABLE, f"eager fails at precision {subject.precision}")
            return
        observation = _observe_call(subject, candidate, example, position, native.calls)
        exact = reference.observe_example(example, position, native.calls)
        moved = Sensitivity(partial(_run_in_context, subject, example, position, native.calls))
        checks = compare(Sides(observation, native, floor, exact), subject.epsilon, moved)
        yield from (_recheck_on_cpu(subject, check, reference, example, position) for check in checks)
        is_void = checks[-1].outcome is Outcome.NOT_COMPARABLE and checks[-1].error is not None
        if is_void and checks[-1].cause != CheckCause.HIDDEN_BY_ROUNDING:
            return  # nothing can be compared, and finding that out takes many runs
        if position < len(subject.first) and (first := subject.first[position]) and candidate is subject.candidate:
            yield check_first(first, observation, checks[-1].error or 0.0, is_right=not is_void)
        if is_void:
            yield from _check_other_first_calls(subject, candidate, inputs[: len(subject.first)], position)
            return


def _check_other_first_calls(
    subject: Subject, candidate: Callable[..., Any], inputs: list[Example], checked: int
) -> Iterator[Check]:
    """Compare the first calls on the inputs after a checked one, where nothing else of them can be compared."""
    for position, example in list(enumerate(inputs))[checked + 1 :] if candidate is subject.candidate else ():
        native, first = _run(subject, subject.workload.call, example, position), subject.first[position]
        if native is not None and first:
            observation = _observe_call(subject, candidate, example, position, native.calls)
            yield check_first(first, observation, 0.0, is_right=False)


def _run_in_context(
    subject: Subject, example: Example, seed: int, calls: int, under: AbstractContextManager[Any]
) -> Any:
    """Return eager's leaves for an example in a context, by name."""
    return dict(_observe_call(subject, subject.floor, example, seed, calls, under).leaves)


def _recheck_on_cpu(subject: Subject, check: Check, reference: Reference, example: Example, seed: int) -> Check:
    """Run the model in float64 on the CPU to find out who is right, if a check failed on another device.

    Random numbers differ there, and functions may keep tensors from one call to the next.
    """
    module = subject.module
    if subject.stochastic or module is None:
        return check
    if not is_doubtful(check, example, itertools.chain(module.parameters(), module.buffers())):
        return check

    def elsewhere() -> Observation | None:
        return subject.reference("cpu").observe_example(to_cpu(example), seed)

    def observe_candidate() -> Observation:
        return _observe_call(subject, subject.candidate, example, seed)

    return compare_with_cpu(check, observe_candidate, lambda: reference.observe_example(example, seed), elsewhere)


def _noisy(subject: Subject, inputs: list[Example], budget_s: float) -> Iterator[Check]:
    """Judge the arithmetic under eager's own random numbers if possible, then the candidate's own noise."""
    if subject.reproducible is not None and _noise_is_matched(subject, inputs[0]):
        yield from _check_with_eager_noise(subject, subject.reproducible, inputs)
    for number, example in enumerate(subject.workload.examples):
        native = _run(subject, subject.workload.call, example, number)
        if native is None:
            yield Check(CheckName.STRUCTURE, Outcome.NOT_COMPARABLE, _why_unseen(subject, example, number))
            return
        observation = _observe_call(subject, subject.candidate, example, number, native.calls)
        yield check_structure(observation, native)
        with kept_state(subject.workload.call):
            found = check_noise(
                *(
                    make_call(call, subject.workload.call, example, is_stateful=subject.stateful)
                    for call in (subject.candidate, subject.floor)
                ),
                budget_s=budget_s / len(subject.workload.examples),
                exact_precision=subject.precision == "native",
            )
        yield from found


def _check_with_eager_noise(subject: Subject, candidate: Callable[..., Any], inputs: list[Example]) -> Iterator[Check]:
    """Judge the arithmetic. If the candidate evidently draws other numbers than eager, leave it to the distribution.

    On CUDA, eager's dropout is one fused kernel. It takes its numbers in another order than Inductor's fallback, so an
    error of the size of the noise says nothing. Errors between rounding and `MATCHED` are the candidate's.
    """
    try:
        for check in _deterministic(subject, candidate, inputs):
            if check.outcome is Outcome.FAIL and check.error is not None and check.error > MATCHED:
                yield Check(
                    CheckName.REPRODUCED_NOISE,
                    Outcome.PASS,
                    "eager's own random numbers cannot be drawn: distribution only",
                    cause=CheckCause.NOISE_NOT_REPRODUCIBLE,
                )
                return
            yield check
    except UnsupportedError:
        if candidate is subject.candidate:
            raise
        # This form of the plan is only a way to verify it. Its distribution is judged, and other plans have their own.


def _noise_is_matched(subject: Subject, example: Example) -> bool:
    native, reference = (
        _run(subject, subject.workload.call, example, 0),
        subject.reference().observe_example(example, 0),
    )
    if native is None or reference is None:
        return False
    pairs = zip(native.leaves, reference.leaves, strict=False)
    tensors = [(a, b) for (_, a), (_, b) in pairs if hasattr(a, "is_floating_point") and a.is_floating_point()]
    return all(a.shape == b.shape and errors_of(a, b).rms < MATCHED for a, b in tensors)


def _run(
    subject: Subject, call: Callable[..., Any], example: Example, seed: int, calls: int | None = None
) -> Observation | None:
    """Observe a call, or several successive ones of a model that keeps state. Return None if the first raises.

    The number of calls is that of an earlier observation, or None.
    """
    original = subject.workload.call
    try:
        if calls is None:
            calls = _calls_in_a_row(original, example) if subject.stateful else 1
            # The examples ran before, and draws that are no example's own were tried.
            if calls > 1 or subject.workload.reseed is not None:
                calls = count_calls_within_bounds(original, example, calls)
        return observe(call, original, example, seed=seed, training=subject.training, calls=calls, may_end=True)
    except Exception:  # eager may raise anything on a made-up draw or at another precision, and the caller says which
        return None


def _calls_in_a_row(call: Callable[..., Any], example: Example) -> int:
    """Return the number of calls that drop the first call's item from a deque of bounded length.

    Code made by Dynamo (torch 2.13) adds to a full deque without dropping an item, which shows no sooner.
    """
    window = State.from_call(call, example.args, example.kwargs).window
    return max(SUCCESSIVE, min(window, MAX_WINDOW) + 1)


def _why_unseen(subject: Subject, example: Example, seed: int) -> str:
    """Say whose error it is that eager cannot be observed on its own example."""
    call, copy = subject.workload.call, example.clone()
    try:
        with torch.set_grad_enabled(subject.training), kept_state(call, copy.args, copy.kwargs):
            if not takes_within_bounds(call, copy.args, copy.kwargs):
                return "eager fails on its own example: it was given values outside of an operator's bounds"
    except Exception as error:  # the model may raise anything
        return f"eager fails on its own example: {format_error(error)}"
    try:
        _observe_call(subject, call, example, seed)
    except Exception as error:  # the model may run, but not allow its observation
        return f"eager runs on its own example, but cannot be observed on it: {format_error(error)}"
    return "eager fails on its own example at times"


def _observe_call(
    subject: Subject,
    call: Callable[..., Any],
    example: Example,
    seed: int,
    calls: int = 1,
    under: AbstractContextManager[Any] | None = None,
) -> Observation:
    original = subject.workload.call
    return observe(call, original, example, seed=seed, training=subject.training, under=under, calls=calls)
