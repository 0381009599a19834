"""The worker's side of a search for a batch size: verify that the samples of a batch do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable

from torchwise.errors import InputError, UnsupportedError
from torchwise.plan.workload_spec import BatchDim
from torchwise.records import WorkerStage
from torchwise.trial.error_origin import check_plainly
from torchwise.trial.job import DerivedJob
from torchwise.trial.loading import load, refuse_step
from torchwise.verify import verify_samples
from torchwise.workload.workload import batch_of


def check_samples(order: DerivedJob, stage: Callable[[str], None]) -> BatchDim:
    """Verify that samples do not depend on each other, and return the batch of the first example.

    Raises:
        InputError: they do, or the workload is a training step.
        BaselineError: the model raises on its own inputs.
    """
    workload = load(order.job)
    refuse_step(workload, "a search for a batch size under a latency limit")
    stage(WorkerStage.VERIFY)
    try:
        verify_samples(workload.call, workload.examples[0])
    except (InputError, UnsupportedError):
        check_plainly(workload)
        raise
    return batch_of(workload.examples[0], 0)
