"""Check in a worker whether a plan has the properties that the user requires, and whether the original model has them.

The checks are in `torchwise.verify.properties`. Here is what they call: a model, or one training step from one state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torchwise.plan.requirements import Property
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check
from torchwise.verify.observe import Observation, draws, make_trial, observe
from torchwise.verify.properties import (
    Run,
    check_batch_invariant,
    check_bitwise,
    check_deterministic,
    digest_answers,
)
from torchwise.verify.step_runner import StepRunner
from torchwise.workload import Workload
from torchwise.workload.bounds import OutOfBoundsError, ends_process
from torchwise.workload.workload import Example

EXTRA_DRAWS = 1
"""Draws of the inputs on which bits are compared, beyond the examples."""


def run_call(workload: Workload, call: Callable[..., Any], mode: str) -> Run:
    """Return a function that observes a call in place of the model's, from the model's own state."""

    def run(example: Example, seed: int) -> Observation:
        return observe(call, workload.call, example, seed=seed, training=mode == "training")

    return run


def run_step(runner: StepRunner, examples: Sequence[Example]) -> Run:
    """Return a function that observes one step: its loss, its gradients, and the parameters after it.

    A scaler first finds its scale on the examples, as a step that it skips shows nothing.
    """
    runner.settle(examples)

    def run(example: Example, seed: int) -> Observation:
        found = runner.gradients(example, seed)
        parameters = [(f"{name} after the step", p.detach().clone()) for name, p in runner.list_parameters()]
        return replace(found, leaves=(*found.leaves, *parameters))

    return run


def check_required(
    spec: WorkloadSpec, workload: Workload, run: Run, original: Run, *, takes_other_sizes: bool
) -> list[Check]:
    """Check the required properties of what `run` observes, the original itself included.

    Args:
        spec: the request, which names the properties, and says whether other sizes are to come.
        workload: the model and its examples.
        run: observes the candidate.
        original: observes the original model.
        takes_other_sizes: whether the candidate answers at sizes that no example has. Otherwise the original does.
    """
    examples, guard = draws(workload, EXTRA_DRAWS), partial(_refuse_beyond_bounds, workload)
    checks: dict[Property, Callable[[], Check]] = {
        Property.DETERMINISTIC: lambda: check_deterministic(run, examples),
        Property.BATCH_INVARIANT: lambda: check_batch_invariant(
            guard(run),
            examples,
            other_sizes=None if spec.sizes == "fixed" else guard(run if takes_other_sizes else original),
            dim=spec.batch.dim if spec.batch else 0,
        ),
        Property.BITWISE: lambda: check_bitwise(run, original, examples),
    }
    return [checks[each]() for each in spec.require]


def _refuse_beyond_bounds(workload: Workload, run: Run) -> Run:
    """Return `run` for calls that do not end the process, as far larger values and NaN may. It raises on those."""
    if not ends_process():
        return run
    takes = make_trial(workload)

    def run_within_bounds(example: Example, seed: int) -> Observation:
        if not takes(example):
            raise OutOfBoundsError("the model does not take this batch")
        return run(example, seed)

    return run_within_bounds


def observe_original(spec: WorkloadSpec, workload: Workload) -> Run:
    """Return a function that observes the original model, or its step."""
    if workload.step is not None:
        return run_step(StepRunner(workload.step), workload.examples)
    return run_call(workload, workload.call, spec.mode)


def check_original(spec: WorkloadSpec, workload: Workload) -> tuple[Check, ...]:
    """Check the required properties of the original model."""
    if not spec.require:
        return ()
    run = observe_original(spec, workload)
    return tuple(check_required(spec, workload, run, run, takes_other_sizes=True))


def digest_if_required(spec: WorkloadSpec, workload: Workload, run: Run) -> str:
    """Return the digest of the answers to the examples, to compare with another process's, or "" if nobody asks."""
    return digest_answers(run, workload.examples) if Property.DETERMINISTIC in spec.require else ""
