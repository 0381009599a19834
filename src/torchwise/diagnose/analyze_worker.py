"""The worker's side of `analyze`: a start from full caches, and the dimension of the batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from torchwise.diagnose.analyze import EagerAtBatch, SteadyRun
from torchwise.diagnose.batches import Scaling
from torchwise.errors import UnsupportedError
from torchwise.measure import device_lock
from torchwise.measure.clock import Clock
from torchwise.measure.memory import peak_memory
from torchwise.plan.workload_spec import BatchDim
from torchwise.records import Measurement, WorkerStage
from torchwise.records.analysis import CALLS_PER_TURN, Consistency, Memory, Steady
from torchwise.trial.experiment import Experiment, PlanCandidate
from torchwise.trial.harness import Harness
from torchwise.trial.loading import load
from torchwise.workload import Workload, pytree
from torchwise.workload.layouts import size_of
from torchwise.workload.workload import batch_of, resize_example

MIN_TURNS, MAX_CALLS = 3, 4000


def measure_steady(request: SteadyRun, stage: Callable[[str], None]) -> Steady:
    """Start the plan from the caches of an earlier process, and time each call by itself."""
    trial = Experiment(request.job, PlanCandidate(request.job.plan))
    harness = trial.harness
    with harness.gradients():
        stage(WorkerStage.WARM_COMPILE)
        trial.build()
        warm: list[float] = []
        start = peak_memory(lambda: warm.append(trial.first_calls()), harness.device)
        stage(WorkerStage.MEASURE)
        common = _commonest(harness.workload)
        plan_calls, eager_calls = _time_alternately(
            trial.calls[common], harness.eager[common], harness.device, request.job.effort.measure_s
        )
        stage("memory")
        call, baseline = harness.memory(trial.calls)
    memory = replace(_static_memory(harness.workload), start=start, call=call, baseline_call=baseline)
    return Steady(warm[0], plan_calls, eager_calls, memory)


def time_eager(request: EagerAtBatch, stage: Callable[[str], None]) -> Measurement:
    """Time eager at a batch size against eager at the size of the given inputs."""
    batch = request.job.batch
    assert batch is not None, "the job names a batch size"
    own, given = (Harness(replace(request.job, batch=BatchDim(batch.dim, n))) for n in (batch.size, request.given))
    stage(WorkerStage.MEASURE)
    with given.gradients():
        return given.measure(own.eager, given.eager)


def _time_alternately(
    plan: Callable[[], Any], eager: Callable[[], Any], device: str, budget_s: float
) -> tuple[Consistency, Consistency]:
    """Time single calls of both sides, some of one and then some of the other, until the budget is spent.

    Garbage collection stays on, as in any program: its pauses belong to the measurement.
    """
    clock, sides = Clock(device), (plan, eager)
    seconds: tuple[list[float], list[float]] = ([], [])
    with device_lock.alone():
        for side in sides:  # the first call after a pause is not a steady one
            clock.once(side)
        deadline = time.perf_counter() + budget_s
        while len(seconds[0]) < MAX_CALLS and (
            len(seconds[0]) < MIN_TURNS * CALLS_PER_TURN or time.perf_counter() < deadline
        ):
            for side, side_seconds in zip(sides, seconds, strict=True):
                side_seconds += [clock.once(side) for _ in range(CALLS_PER_TURN)]
    return Consistency(tuple(seconds[0])), Consistency(tuple(seconds[1]))


def _commonest(workload: Workload) -> int:
    """Return the index of the most frequent example: across a mix, calls would differ by their shapes alone."""
    weights = [example.weight for example in workload.examples]
    return weights.index(max(weights))


def _static_memory(workload: Workload) -> Memory:
    module, inputs = workload.module, [_bytes((e.args, dict(e.kwargs))) for e in workload.examples]
    weights = () if module is None else (*module.parameters(), *module.buffers())
    return Memory(sum(map(size_of, {id(t): t for t in weights}.values())), max(inputs))


def _bytes(tree: Any) -> int:
    return sum(map(size_of, pytree.tensors(tree)))


def find_batch_dim(scaling: Scaling, stage: Callable[[str], None]) -> BatchDim:
    """Find the batch dimension, or check the named one.

    A batch is a dimension in which every tensor of the inputs has the same size. If none is named, the outputs must
    grow with it as well. Otherwise it may be a sequence, or a matrix without a batch.

    Raises:
        UnsupportedError: there is none, as the message explains.
    """
    workload = load(scaling.job)
    batch = batch_of(workload.examples[0], scaling.dim)
    if scaling.dim is None:
        stage("find the batch dimension")
        _check_outputs(workload, batch)
    return batch


def _check_outputs(workload: Workload, batch: BatchDim) -> None:
    """Run the model on one item more than the inputs hold.

    Raises:
        UnsupportedError: it does not run, or no output grows by an item.
    """
    more = resize_example(workload.examples[0], batch.dim, batch.size + 1)
    try:
        with torch.no_grad():
            outputs = workload.call(*more.args, **more.kwargs)
    except Exception as error:  # the user's model may raise anything on inputs that it was not made for
        raise UnsupportedError(
            f"the model raises {type(error).__name__} on {batch.size + 1} items instead of {batch.size} along "
            f"dimension {batch.dim}: {error}"
        ) from error
    if not any(batch.size + 1 in tensor.shape for tensor in pytree.tensors(outputs)):
        raise UnsupportedError(
            f"no output grows with dimension {batch.dim} of the inputs, so it may be no batch: if it is one, pass "
            f"--batch-dim {batch.dim}"
        )
