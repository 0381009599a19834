"""Run all checks of a candidate for a training step, cheapest first. The first that does not pass ends them.

1. Gradients of single steps against float64 (`gradients`), each tensor's error and its scale. A
   gradient that is 1 % too large lies within the rounding of a low precision, element by element. But rounding averages
   out over a tensor, and a factor does not.
2. Parameters, buffers and the optimizer's state after a few steps, against float64.
3. The loss of a step, which must not change while later steps are taken.
4. Curves of the loss over several seeds against eager's (`updates`).
5. The trained weights, in the plain model.

A step that draws random numbers is verified twice. Checks 1 and 2 run with its dropout turned off. In addition to 3
and 4, the distribution of its losses and gradients is compared with eager's (`stochastic`).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torchwise.records import Check, CheckName, Figure, Outcome, Verdict
from torchwise.verify.gradients import Gradients
from torchwise.verify.noise_floor import Bounds, Sensitivity
from torchwise.verify.observe import Observation, draws, further
from torchwise.verify.reference import compare_with_cpu, is_doubtful, to_cpu
from torchwise.verify.spot_check import check_first
from torchwise.verify.step_runner import Maker, ReferenceStepRunner, StepRunner, name_gradient, quiet
from torchwise.verify.stochastic import check_noise, is_stochastic
from torchwise.verify.updates import Sides, bounds_of, check_trajectories, compare_updates
from torchwise.verify.verify import EPSILON
from torchwise.workload import pytree
from torchwise.workload.train_step import TrainStep, find_sharded_modules, unwrap_ddp
from torchwise.workload.workload import Example, Workload

MAX_DRAWS, PATIENCE = 12, 4.0
"""Maximum number of further draws of each example to compare gradients on if the first do not settle it, and maximum
time for them as a multiple of the budget: slow models get fewer.
"""
STEPS = 4
"""Steps after which all state is compared: enough for momenta to matter, too few for roundings to grow."""
ORDERS = 4
"""Orders of the batches in which those steps are tried at most: one has to pass."""
FURTHER = 2
"""Multiple of those steps after which parameters are compared once more if the optimizer's state cannot be."""
MIN_STEPS, MAX_STEPS = 6, 40
MIN_SEEDS = 4
LOOSE, LOOSE_REDUCED = 1e-3, 5e-2
"""Relative error that the loss of the plain model may have against the candidate's own, for the same weights."""


@dataclass(frozen=True, slots=True)
class StepSubject:
    """The candidate to verify, with everything it is compared with.

    Attributes:
        workload: its call is the step in the state that everything starts from, with the optimizer's state made.
        candidate: the candidate to judge.
        make: makes such a candidate of another copy of the step.
        floor: makes eager at the candidate's precision, or None if that is the step as written.
        precision: the candidate's precision.
        stochastic: whether the step draws random numbers.
        first: the number of the example and the observation of the candidate's very first step, or None if unknown.
    """

    workload: Workload
    candidate: StepRunner
    make: Maker
    floor: Maker | None = None
    precision: str = "native"
    stochastic: bool = False
    first: tuple[int, Observation] | None = None

    @property
    def base(self) -> TrainStep:
        """The step."""
        step: TrainStep = self.workload.call  # type: ignore[assignment]
        return step

    @property
    def epsilon(self) -> float | None:
        """Spacing at 1 of the numbers that the candidate computes in, or None for each tensor's own dtype."""
        written = {"torch.bfloat16": "autocast_bf16", "torch.float16": "autocast_fp16"}.get(str(self.base.autocast))
        return EPSILON.get(self.precision if self.precision != "native" or written is None else written)

    def bounds(self, *, has_reference: bool) -> Bounds:
        """Return the errors granted to the state after steps."""
        wide = all(p.dtype in (torch.float64, torch.complex128) for p in self.base.trained())
        return bounds_of(is_own=not has_reference, in_float64=wide and self.epsilon is None)


def verify_step(
    subject: StepSubject,
    *,
    extra_draws: int = 2,
    noise_budget_s: float = 5.0,
    tell: Callable[[str], None] = lambda _stage: None,
) -> Verdict:
    """Judge a candidate for a training step, without changing the step itself.

    Args:
        subject: the candidate, and everything it is compared with.
        extra_draws: draws of the batch beyond the examples themselves, and seeds beyond the least.
        noise_budget_s: seconds for the loss curves, and as many for the distribution tests.
        tell: receives a line for each finished check. For the loss curves, it names the first and the last loss.
    """
    checks: list[Check] = []
    for check in _StepChecks(subject, extra_draws, noise_budget_s).run():
        checks.append(check)
        tell(f"verify: {check.describe_loss() or check.name}")
        if check.outcome is not Outcome.PASS:  # nothing that follows could make it one
            break
    return Verdict(tuple(checks))


class _StepChecks:
    """The checks of one candidate."""

    def __init__(self, subject: StepSubject, extra_draws: int, budget_s: float) -> None:
        self._subject, self._candidate, self._budget_s = subject, subject.candidate, budget_s
        self._inputs = draws(subject.workload, extra_draws)
        self._more = further(subject.workload, range(extra_draws + 1, MAX_DRAWS + 1))
        self._seeds = MIN_SEEDS + extra_draws

    def run(self) -> Iterator[Check]:
        subject, candidate = self._subject, self._candidate
        candidate.settle(self._inputs)
        yield from self._noisy() if subject.stochastic else self._arithmetic(subject.base, candidate)
        yield check_retained_loss(candidate, self._inputs)
        yield self._trajectories()
        if not subject.stochastic:
            yield _weights(subject, candidate, self._inputs)

    def _make_runner(self, base: TrainStep, make: Maker | None = None) -> StepRunner:
        runner = StepRunner(base, make)
        runner.settle(self._inputs)
        return runner

    def _arithmetic(self, base: TrainStep, candidate: StepRunner) -> Iterator[Check]:
        """Compare gradients and updates of a step that draws no random numbers, on more inputs if needed."""
        subject, inputs = self._subject, self._inputs
        native = self._make_runner(base)
        floor = self._make_runner(base, subject.floor) if subject.floor else native
        reference = ReferenceStepRunner.from_step(base, inputs[0])
        gradients, start, is_open = Gradients(subject.epsilon), time.perf_counter(), False
        later: Observation | None = None
        for seed, example in enumerate(itertools.chain(inputs, self._more)):
            own, plain, usual = (who.gradients(example, seed) for who in (candidate, native, floor))
            if subject.first and subject.first[0] == seed and candidate is subject.candidate:
                later = own
            exact = reference.gradients(example, seed) if reference else None
            gradients.add(own, plain, usual, exact, _make_sensitivity(floor, partial(_leaves, floor, example, seed)))
            if seed + 1 < len(inputs):
                continue
            # Once needed, all further draws count: to stop at the first that lets it pass would let faults pass.
            is_open = is_open or gradients.is_open or gradients.decides
            if not is_open or time.perf_counter() - start >= PATIENCE * self._budget_s:
                break
        checks = gradients.checks()
        yield from (_recheck_on_cpu(check, base, candidate, reference, inputs[0]) for check in checks)
        if subject.first and later:
            yield check_first(subject.first[1], later, checks[0].error or 0.0)
        rounding = {name for name in candidate.list_parameter_names() if name_gradient(name) in gradients.rounding}
        sides, bounds = (candidate, floor, reference or native), subject.bounds(has_reference=bool(reference))
        yield _updates(sides, inputs, rounding, bounds)

    def _noisy(self) -> Iterator[Check]:
        subject, candidate, example = self._subject, self._candidate, self._inputs[0]
        still, had_dropout = quiet(subject.base)
        if had_dropout and _is_still(still, example):
            yield from self._arithmetic(still, self._make_runner(still, subject.make))
        floor = self._make_runner(subject.base, subject.floor)
        yield from check_noise(
            lambda: candidate.answer(example),
            lambda: floor.answer(example),
            budget_s=self._budget_s,
            exact_precision=subject.precision == "native" and subject.base.autocast is None,
        )

    def _trajectories(self) -> Check:
        inputs, eager = self._inputs, self._make_runner(self._subject.base)
        start = time.perf_counter()
        eager.losses([inputs[0]] * 2, seed=0)
        each = (time.perf_counter() - start) / 2
        steps = int(min(max(self._budget_s / (2 * self._seeds * max(each, 1e-6)), MIN_STEPS), MAX_STEPS))
        orders = [random.Random(seed).choices(inputs, k=steps) for seed in range(self._seeds)]
        sides = (self._candidate, eager)
        curves = [[who.losses(order, seed) for seed, order in enumerate(orders)] for who in sides]
        return check_trajectories(curves[0], curves[1], reduced=self._subject.precision != "native")


def _updates(sides: tuple[StepRunner, ...], inputs: list[Example], rounding: Collection[str], bounds: Bounds) -> Check:
    """Compare the state after some steps, in several orders of the batches.

    If a rounding changes a decision of the model (see `gradients`), everything after it differs. So one order has to
    pass.
    """
    found: list[Check] = []
    for first in range(ORDERS):
        order = (inputs[first % len(inputs) :] + inputs * STEPS)[:STEPS]
        check, has_undecided = _updates_in(order, first, sides, rounding, bounds)
        if check.outcome is Outcome.PASS and has_undecided:
            check, _ = _updates_in(order * FURTHER, first, sides, rounding, bounds, with_slots=False)
        if check.outcome is Outcome.PASS:
            return check
        found.append(check)
    return next((check for check in found if check.outcome is Outcome.FAIL), found[0])


def _updates_in(
    order: list[Example],
    seed: int,
    sides: tuple[StepRunner, ...],
    rounding: Collection[str],
    bounds: Bounds,
    *,
    with_slots: bool = True,
) -> tuple[Check, bool]:
    sides_after = Sides(*(who.take_steps(order, seed) for who in sides))
    moved = _make_sensitivity(sides[1], lambda: sides[1].take_steps(order, seed).leaves())
    return compare_updates(sides_after if with_slots else sides_after.drop_slots(), len(order), rounding, bounds, moved)


def _leaves(runner: StepRunner, example: Example, seed: int) -> Mapping[str, Any]:
    return dict(runner.gradients(example, seed).leaves)


def _make_sensitivity(floor: StepRunner, run: Callable[[], Mapping[str, Any]]) -> Sensitivity:
    """Return how far rounding moves a step's results: unknown for several ranks, which would measure together."""

    def run_in_context(context: AbstractContextManager[Any]) -> Mapping[str, Any]:
        with floor.inside(context):
            return run()

    return Sensitivity(None if _is_shared(floor.step) else run_in_context)


def _is_shared(step: TrainStep) -> bool:
    return unwrap_ddp(step.model) is not step.model or bool(find_sharded_modules(step.model))


def _recheck_on_cpu(
    check: Check, base: TrainStep, candidate: StepRunner, reference: ReferenceStepRunner | None, example: Example
) -> Check:
    """Run the step in float64 on the CPU to find out who is right, if a check failed on another device.

    A wrong kernel is wrong on every draw of the batch. A collective operation of all ranks cannot be repeated by one.
    """
    if reference is None or _is_shared(base) or not is_doubtful(check, example, base.trained()):
        return check

    def elsewhere() -> Observation | None:
        there = ReferenceStepRunner.from_step(base, to_cpu(example), device="cpu")
        return there.gradients(to_cpu(example), seed=0) if there else None

    return compare_with_cpu(
        check, lambda: candidate.gradients(example, seed=0), lambda: reference.gradients(example, seed=0), elsewhere
    )


def check_retained_loss(candidate: StepRunner, inputs: list[Example]) -> Check:
    """Check that the loss of a step stays the same while two more are taken."""
    candidate.restart(seed=0)
    loss = candidate.take(inputs[0])
    copy = loss.detach().clone()
    later = [candidate.take(example) for example in (inputs * 2)[-2:]]
    if not pytree.equal(loss, copy) or loss.data_ptr() in {other.data_ptr() for other in later}:
        return Check(
            CheckName.RETAINED_LOSS, Outcome.FAIL, "a loss that the caller holds is overwritten by a later step"
        )
    return Check(CheckName.RETAINED_LOSS, Outcome.PASS, "a loss stays as it is while later steps are taken")


def _is_still(step: TrainStep, example: Example) -> bool:
    runner = StepRunner(step)
    return not is_stochastic(lambda: runner.answer(example))[0]


def _weights(subject: StepSubject, candidate: StepRunner, inputs: list[Example]) -> Check:
    """Run the plain model with the weights that the candidate has trained."""
    example = inputs[0]
    candidate.losses(inputs[:STEPS], seed=0)
    put_back = candidate.step.snapshot()
    plain = float(candidate.loss_at(example))
    put_back()  # batch-norm's statistics
    own = float(candidate.take(example))
    off = abs(plain - own) / (abs(plain) or 1.0)
    most = LOOSE if subject.precision == "native" and subject.base.autocast is None else LOOSE_REDUCED
    failed = not off <= most
    detail = f"with the weights it has trained, the plain model's loss is {plain:.5g}, and its own {own:.5g}"
    return Check(CheckName.WEIGHTS, Outcome.FAIL if failed else Outcome.PASS, detail, off, figures={Figure.LIMIT: most})
