"""Judge a training step in place of another one: gradients, updates, state and loss curves, from the same weights."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.errors import InputError
from torchwise.plan.effort import EffortProfile
from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.observe import draws
from torchwise.verify.step import StepSubject, verify_step
from torchwise.verify.step_runner import StepRunner
from torchwise.verify.stochastic import is_stochastic
from torchwise.verify.surroundings import Surroundings
from torchwise.workload.train_step import TrainStep
from torchwise.workload.workload import Workload


def judge_steps(
    workload: Workload, candidate: TrainStep, before: Surroundings, effort: EffortProfile
) -> Iterator[Check]:
    """Yield the checks of a training step, until one fails.

    Args:
        workload: the reference's step, and its batches.
        candidate: the other step. It takes over the reference's weights.
        before: the surroundings before the candidate was loaded.
        effort: how carefully.

    Raises:
        InputError: the steps train other weights.
    """
    base = workload.call
    assert isinstance(base, TrainStep)
    _adopt(base, candidate)
    for step in (base, candidate):  # makes the optimizers' state, as all sides must have it
        example = workload.examples[0].clone()
        step(*example.args, **example.kwargs)
    _adopt(base, candidate)
    runner = StepRunner(base)
    stochastic = is_stochastic(lambda: runner.answer(draws(workload, 0)[0]))[0]
    subject = StepSubject(workload, StepRunner(candidate), lambda _step: candidate.copy(), stochastic=stochastic)
    yield from verify_step(subject, extra_draws=effort.extra_draws, noise_budget_s=effort.noise_s).checks
    replaced = before.list_replaced()
    detail = f"the candidate replaces {replaced[0]}" if replaced else "PyTorch's functions and timers are as they were"
    yield Check(CheckName.SURROUNDINGS, Outcome.FAIL if replaced else Outcome.PASS, detail)


def _adopt(base: TrainStep, candidate: TrainStep) -> None:
    """Copy the weights and the optimizer's state of a step to another one."""
    for name, module in base.modules().items():
        other = candidate.modules().get(name)
        own = {n: t.shape for n, t in module.state_dict().items()}
        if other is None or own != {n: t.shape for n, t in other.state_dict().items()}:
            raise InputError(
                f"the candidate's {name} has other weights than the reference's, so no step can be compared"
            )
        other.load_state_dict(module.state_dict())
    if base.optimizer.state:
        own = candidate.optimizer.state_dict()["param_groups"]  # rates and such are what is judged
        candidate.optimizer.load_state_dict({"state": base.optimizer.state_dict()["state"], "param_groups": own})
