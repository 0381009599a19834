"""How a search chooses the batch size: as the inputs have it, or the one of most samples per second."""

from __future__ import annotations

from typing import get_args

from torchwise.errors import InputError
from torchwise.plan.workload_spec import Batch, WorkloadSpec


def check_batch(batch: str, spec: WorkloadSpec) -> None:
    """Refuse a way to choose the batch size that is unknown, or that another option rules out."""
    if batch not in get_args(Batch):
        raise InputError(f"batch is {batch!r:.40}, but must be one of {', '.join(get_args(Batch))}")
    if batch == "as-given":
        return
    if spec.objective != "throughput":
        raise InputError(
            f"batch is 'best' with objective {spec.objective!r}, but only throughput tells which size is best: add "
            '--objective throughput (objective="throughput")'
        )
    if spec.mode == "training":
        raise InputError(
            "batch is 'best' with mode 'training', but a step learns otherwise from other batches: torchwise.fit_batch "
            "finds the size of most samples per second for a step"
        )
    if spec.sizes == "varying":
        raise InputError(
            "sizes is 'varying', but must be 'as-given' or 'fixed' with batch 'best', as the batch size is then chosen "
            "on the first example: leave --sizes (sizes) out, or --batch (batch)"
        )
