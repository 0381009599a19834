"""The worker's side of a search for a batch size: verify that the samples of a batch do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.errors import InputError, UnsupportedError
from torchwise.records import WorkerStage
from torchwise.trial.error_origin import check_plainly
from torchwise.trial.job import DerivedJob
from torchwise.trial.loading import load, refuse_step
from torchwise.verify import verify_samples
from torchwise.verify.independence import NoisyError, verify_random_samples
from torchwise.workload import Workload
from torchwise.workload.samples import Call, merge_calls, split_answer
from torchwise.workload.workload import resize_example


def check_samples(order: DerivedJob, stage: Callable[[str], None]) -> bool:
    """Verify that samples do not depend on each other, and return whether their answers differ from call to call.

    Raises:
        InputError: they do, or the workload is a training step.
        BaselineError: the model raises on its own inputs.
    """
    workload = load(order.job)
    refuse_step(workload, "a search for batch size and plan together")
    stage(WorkerStage.VERIFY)
    try:
        return _verify(workload, order.job.effort.noise_s)
    except (InputError, UnsupportedError):
        check_plainly(workload)
        raise


def _verify(workload: Workload, noise_s: float) -> bool:
    model, example = workload.call, workload.examples[0]
    try:
        verify_samples(model, example)
        return False
    except NoisyError:
        first = resize_example(example, 0, 1)

        def answer_many(calls: list[Call]) -> list[Any]:
            args, kwargs = merge_calls(calls)
            return split_answer(model(*args, **kwargs), [1] * len(calls), len(calls))

        def answer_one(call: Call) -> Any:
            return model(*call[0], **call[1])

        verify_random_samples(answer_many, answer_one, (first.args, dict(first.kwargs)), budget_s=noise_s)
        return True
