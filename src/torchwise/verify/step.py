"""All checks of a candidate for a training step, cheapest first; the first that fails ends them.

1. Gradients of single steps against float64 (`gradients`), each tensor's error and its scale (`scales`): a gradient
   that is 1 % too large lies within the rounding of a low precision, element by element, but rounding averages out
   over a tensor, and a factor does not.
2. What a few steps made of parameters, buffers and the optimizer's state, against float64.
3. The loss of a step, held while later steps are taken.
4. Curves of the loss over several seeds against eager's (`trajectory`).
5. The weights that were trained, in the model run plainly.

A step that draws random numbers is proven twice: with its dropout turned off for 1 and 2, and as it is by the
distribution of its losses and gradients (`stochastic`), beside 3 and 4.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchwise.records import Check, Outcome, Verdict
from torchwise.verify.compare import RMS_FACTOR
from torchwise.verify.draws import draws, further
from torchwise.verify.elsewhere import doubted, is_doubtful, on_cpu
from torchwise.verify.gradients import Gradients
from torchwise.verify.observe import Observation
from torchwise.verify.stochastic import check_noise, is_stochastic
from torchwise.verify.trainee import After, Maker, ReferenceTrainee, Trainee, quiet
from torchwise.verify.trajectory import TRAJECTORIES, check_trajectories
from torchwise.verify.verify import EPSILON
from torchwise.workload import trees
from torchwise.workload.step import TrainStep, sharded_parts, unwrapped
from torchwise.workload.workload import Example, Workload

if TYPE_CHECKING:
    import torch

MOST_DRAWS, PATIENCE = 12, 4.0
"""Further draws of each example on which gradients are compared where the first do not settle it, and for how many
times the budget: slow models get fewer."""
STEPS = 4
"""Steps after which all state is compared: enough for momenta to matter, too few for roundings to grow."""
ORDERS = 4
"""Orders of the batches in which those steps are tried at most: one has to pass."""
GRANTED = 1e-3
ASTRAY = 0.5
"""Relative error of an update's size along the reference's that no rounding explains: one that is left out has 1."""
LEAST_STEPS, MOST_STEPS = 6, 40
LEAST_SEEDS = 4
LOOSE, LOOSE_REDUCED = 1e-3, 5e-2
"""Relative error that the loss of the plain model may have against the candidate's own, for the same weights."""


@dataclass(frozen=True, slots=True)
class StepSubject:
    """What is verified, with what it is held against.

    Attributes:
        workload: its call is the step in the state that everything starts from, with the optimizer's state made.
        candidate: what is judged.
        make: makes such a candidate of another copy of the step.
        floor: makes eager at the candidate's precision; None where that is the step as written.
        precision: of the candidate.
        stochastic: whether the step draws random numbers.
    """

    workload: Workload
    candidate: Trainee
    make: Maker
    floor: Maker | None = None
    precision: str = "native"
    stochastic: bool = False

    @property
    def base(self) -> TrainStep:
        """The step."""
        step: TrainStep = self.workload.call  # type: ignore[assignment]
        return step

    @property
    def epsilon(self) -> float | None:
        """Spacing at 1 of the numbers that the candidate computes in; None for each tensor's own dtype."""
        written = {"torch.bfloat16": "autocast_bf16", "torch.float16": "autocast_fp16"}.get(str(self.base.autocast))
        return EPSILON.get(self.precision if self.precision != "native" or written is None else written)


def verify_step(
    subject: StepSubject,
    *,
    extra_draws: int = 2,
    noise_budget_s: float = 5.0,
    tell: Callable[[str], None] = lambda _stage: None,
) -> Verdict:
    """Judge a candidate for a training step; the step itself is not changed by it.

    Args:
        subject: what is judged, and against what.
        extra_draws: draws of the batch beyond the examples themselves, and seeds beyond the least.
        noise_budget_s: seconds for the loss curves, and as many for the distribution tests.
        tell: hears of each check that is done; of the loss curves, where they went.
    """
    checks: list[Check] = []
    for check in _checks(subject, extra_draws, noise_budget_s):
        checks.append(check)
        tell(f"verify: {check.detail.rpartition('; ')[2] if check.name == TRAJECTORIES else check.name}")
        if check.outcome is Outcome.FAIL:
            break
    return Verdict(tuple(checks))


def _checks(subject: StepSubject, extra_draws: int, budget_s: float) -> Iterator[Check]:
    inputs = draws(subject.workload, extra_draws)
    candidate = subject.candidate
    candidate.settle(inputs)
    more = further(subject.workload, range(extra_draws + 1, MOST_DRAWS + 1))
    if not subject.stochastic:
        yield from _arithmetic(subject, subject.base, candidate, inputs, more, budget_s)
    else:
        yield from _noisy(subject, candidate, inputs, more, budget_s)
    yield check_held_loss(candidate, inputs)
    eager = _settled(Trainee(subject.base), inputs)
    yield _trajectories(subject, candidate, eager, inputs, LEAST_SEEDS + extra_draws, budget_s)
    if not subject.stochastic:
        yield _weights(subject, candidate, inputs)


def _arithmetic(
    subject: StepSubject,
    base: TrainStep,
    ours: Trainee,
    inputs: list[Example],
    more: Iterable[Example],
    budget_s: float,
) -> Iterator[Check]:
    """Compare gradients and updates of a step that draws no random numbers; on `more` inputs where that is needed."""
    native = _settled(Trainee(base), inputs)
    floor = _settled(Trainee(base, subject.floor), inputs) if subject.floor else native
    reference = _reference(base, inputs[0])
    gradients, start, is_open = Gradients(subject.epsilon), time.perf_counter(), False
    for seed, example in enumerate(itertools.chain(inputs, more)):
        own, plain, usual = (who.gradients(example, seed) for who in (ours, native, floor))
        gradients.add(own, plain, usual, reference.gradients(example, seed) if reference else None)
        if seed + 1 < len(inputs):
            continue
        # Once asked for, all further draws count: to stop at the first that lets it pass would let faults pass.
        is_open = is_open or gradients.is_open or gradients.decides
        if not is_open or time.perf_counter() - start >= PATIENCE * budget_s:
            break
    yield from (_asked_elsewhere(check, base, ours, reference, inputs[0]) for check in gradients.checks())
    rounding = {name.removeprefix("gradient of ") for name in gradients.rounding}
    # Several times: where a model decides otherwise after a rounding (see `gradients`), all that follows is another.
    for first in range(ORDERS):
        order = (inputs[first % len(inputs) :] + inputs * STEPS)[:STEPS]
        moved = [who.after(order, seed=first) for who in (ours, floor, reference or native)]
        check = _updates(moved[0], moved[1], moved[2], rounding)
        if check.outcome is Outcome.PASS:
            break
    yield check


def _asked_elsewhere(
    check: Check, base: TrainStep, ours: Trainee, reference: ReferenceTrainee | None, example: Example
) -> Check:
    """Ask the step in float64 on the CPU who is right, where a check failed on another device.

    A kernel that is wrong is so on every draw of the batch. What ranks do together, one cannot do again by itself.
    """
    is_shared = unwrapped(base.model) is not base.model or bool(sharded_parts(base.model))
    if reference is None or is_shared or not is_doubtful(check, example, base.trained()):
        return check

    def elsewhere() -> Observation:
        return ReferenceTrainee(base, device="cpu").gradients(on_cpu(example), seed=0)

    return doubted(
        check, lambda: ours.gradients(example, seed=0), lambda: reference.gradients(example, seed=0), elsewhere
    )


def _reference(base: TrainStep, example: Example) -> ReferenceTrainee | None:
    try:
        found = ReferenceTrainee(base)
        found.gradients(example, seed=0)
    except Exception:  # a model may refuse float64 in any way; the most precise eager stands in
        return None
    return found


def _updates(ours: After, floor: After, reference: After, rounding: Collection[str] = ()) -> Check:
    """Compare what some steps made of all state.

    Args:
        ours: the candidate's.
        floor: eager's at its precision.
        reference: in float64.
        rounding: parameters whose gradients are nothing but roundings: where those are much of an update in eager too,
            it need only be finite.
    """
    import torch

    worst, usual = 0.0, 0.0
    if missing := set(reference.state) ^ set(ours.state):
        return Check("state", Outcome.FAIL, f"{min(missing)} is there on one side alone")
    for name, exact in reference.state.items():
        value = ours.state[name]
        if not isinstance(exact, torch.Tensor) or not (exact.is_floating_point() or exact.is_complex()):
            if not _equal(value, exact):
                return Check("state", Outcome.FAIL, f"{name} is {value}, in the reference {exact}")
            continue
        parameter = reference.of.get(name, "")
        off, normal = (_off(side, exact, reference.quiet.get(parameter)) for side in (value, floor.state[name]))
        if parameter in rounding and normal >= 10 * GRANTED and not math.isnan(off):
            continue
        if math.isnan(off) and not math.isnan(normal):
            return Check("state", Outcome.FAIL, f"{name} is not finite just where the reference is not", off, normal)
        if off > RMS_FACTOR * normal + GRANTED:
            detail = f"after {STEPS} steps {name} is off by {off:.2g} (root mean square), eager by {normal:.2g}"
            return Check("state", Outcome.FAIL, detail, off, normal)
        if name.startswith("update of") and parameter not in rounding:
            moved, normally = (_along(side, exact) for side in (value, floor.state[name]))
            if abs(normally - 1) < ASTRAY / 2 and not abs(moved - 1) < ASTRAY:
                detail = f"after {STEPS} steps {name} is {moved:.2g} times the reference's, eager's {normally:.2g}"
                return Check("state", Outcome.FAIL, detail, abs(moved - 1), abs(normally - 1))
        if off > worst:
            worst, usual = off, normal
    detail = (
        f"after {STEPS} steps {len(reference.state)} tensors of state are off by {worst:.2g} at most, eager's by "
        f"{usual:.2g}"
    )
    return Check("state", Outcome.PASS, detail, worst, usual)


def _along(update: torch.Tensor, exact: torch.Tensor) -> float:
    """Return how large an update is along the reference's; 1 where that is nothing."""
    from torchwise.verify.scales import along

    return along(update, exact) if bool(exact.any()) else 1.0


def _equal(value: Any, exact: Any) -> bool:
    import torch

    if isinstance(exact, torch.Tensor):
        return isinstance(value, torch.Tensor) and bool(torch.equal(value.to(exact.device), exact))
    return bool(value == exact) or not isinstance(exact, (bool, int, float, str))


def _off(tensor: Any, exact: torch.Tensor, quiet: torch.Tensor | None) -> float:
    """Return the relative error, root mean square, over the elements that are not quiet.

    NaN where it is finite elsewhere than the reference: a mask of infinities must be the same one.
    """
    import torch

    from torchwise.verify.reference import widened

    if not isinstance(tensor, torch.Tensor) or tensor.shape != exact.shape:
        return math.nan
    target, value = widened(exact), widened(tensor).to(exact.device)
    finite = target.isfinite()
    if not torch.equal(value.isfinite(), finite) or not trees.equal(value[~finite], target[~finite]):
        return math.nan
    judged = finite if quiet is None or quiet.shape != finite.shape else finite & ~quiet.to(finite.device)
    if not bool(judged.any()):
        return 0.0
    scale = float(target[finite].abs().square().mean().sqrt()) or 1.0
    return float((value - target)[judged].abs().square().mean().sqrt()) / scale


def check_held_loss(candidate: Trainee, inputs: list[Example]) -> Check:
    """Hold the loss of a step while two more are taken."""
    candidate.restart(seed=0)
    held = candidate.take(inputs[0])
    kept = held.detach().clone()
    later = [candidate.take(example) for example in (inputs * 2)[-2:]]
    if not trees.equal(held, kept) or held.data_ptr() in {loss.data_ptr() for loss in later}:
        return Check("held loss", Outcome.FAIL, "a loss that the caller holds is overwritten by a later step")
    return Check("held loss", Outcome.PASS, "a loss stays as it is while later steps are taken")


def _settled(trainee: Trainee, inputs: list[Example]) -> Trainee:
    trainee.settle(inputs)
    return trainee


def _noisy(
    subject: StepSubject, candidate: Trainee, inputs: list[Example], more: Iterable[Example], budget_s: float
) -> Iterator[Check]:
    still, had_dropout = quiet(subject.base)
    if had_dropout and _is_still(still, inputs[0]):
        yield from _arithmetic(subject, still, _settled(Trainee(still, subject.make), inputs), inputs, more, budget_s)
    floor = _settled(Trainee(subject.base, subject.floor), inputs)
    yield from check_noise(
        lambda: candidate.answer(inputs[0]),
        lambda: floor.answer(inputs[0]),
        budget_s=budget_s,
        exact_precision=subject.precision == "native" and subject.base.autocast is None,
    )


def _is_still(step: TrainStep, example: Example) -> bool:
    trainee = Trainee(step)
    return not is_stochastic(lambda: trainee.answer(example))[0]


def _trajectories(
    subject: StepSubject, ours: Trainee, eager: Trainee, inputs: list[Example], seeds: int, budget_s: float
) -> Check:
    start = time.perf_counter()
    eager.losses([inputs[0]] * 2, seed=0)
    each = (time.perf_counter() - start) / 2
    steps = int(min(max(budget_s / (2 * seeds * max(each, 1e-6)), LEAST_STEPS), MOST_STEPS))
    orders = [random.Random(seed).choices(inputs, k=steps) for seed in range(seeds)]
    curves = [[who.losses(order, seed) for seed, order in enumerate(orders)] for who in (ours, eager)]
    return check_trajectories(curves[0], curves[1], reduced=subject.precision != "native")


def _weights(subject: StepSubject, candidate: Trainee, inputs: list[Example]) -> Check:
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
    return Check("weights", Outcome.FAIL if failed else Outcome.PASS, detail, off)
