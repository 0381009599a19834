"""Other batch sizes: the job that finds the batch dimension, and `torchwise.fit_batch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchwise.diagnose.requests import make_spec, plan_of
from torchwise.errors import InputError, WorkloadError, is_count, is_positive
from torchwise.keywords import checked_keywords
from torchwise.parsing import to_bytes, to_seconds
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.records import Decision
from torchwise.records.scale import BatchFit
from torchwise.study.batch_search import MAX_BATCH, fit_sizes
from torchwise.study.one_plan import PlanStudy
from torchwise.trial import DerivedJob, Job, Launcher, ProcessLauncher, send_model
from torchwise.workload import Workload
from torchwise.workload.target import read_workload

FIT_LIMIT_S = 600.0


@checked_keywords()
def fit_batch(
    model: Callable[..., Any] | Workload,
    args: Any = None,
    *,
    plan: Plan | Decision | str | None = "eager",
    memory_limit: int | str | None = None,
    latency_limit: float | str | None = None,
    largest: int = MAX_BATCH,
    effort: str = "quick",
    launcher: Launcher | None = None,
) -> BatchFit:
    """Find the largest batch that fits under a plan, and the one with the highest throughput.

    The batch starts at the size of the example and doubles until it fails or passes the limit. Then the gap is halved a
    few times. Each size runs in a process of its own, on repeated inputs: it is compiled, verified and timed.

    Args:
        model: a `TrainStep`, an `nn.Module`, a function or a `Workload`.
        args: an example batch, along the first dimension of every tensor in it.
        plan: as `torchwise.analyze` takes it.
        memory_limit: size that a call may take at its peak in addition to weights, optimizer state and inputs, as bytes
            or such as "2GB". None stands for the device's memory.
        latency_limit: seconds, or a text such as "20ms", within which a batching server answers a request. A call may
            take half of it, as a request may wait for the batch before its own.
        largest: no larger batch is tried.
        effort: how carefully each size is measured: "quick", "standard" or "thorough".
        launcher: where the workers run, by default processes of this machine.

    Raises:
        InputError: an argument cannot be used, or the inputs have no batch.
        BaselineError: the model raises on the example batch.
    """
    from torchwise.runtime import unwrap
    from torchwise.workload.identity import structure
    from torchwise.workload.workload import batch_of

    workload = read_workload(model if isinstance(model, Workload) else unwrap(model), args, None, None)
    if workload is None:
        raise InputError(f"model is {model!r}, but must be the step, module, function or Workload itself")
    most = None if memory_limit is None else to_bytes(memory_limit, "memory limit")
    start = batch_of(workload.examples[0], 0).size
    if not is_positive(largest) or largest < start:
        raise InputError(f"largest is {largest!r}, but must be at least {start}, the batch size of the example")
    options: dict[str, Any] = {"mode": "training" if workload.step else "inference", "memory_limit": most}
    if latency_limit is not None:
        options["latency_limit"] = to_seconds(latency_limit, "latency limit")
    spec = make_spec(model, workload, None, objective="throughput", calls=1, restarts=1, **options)
    chosen = plan_of(plan, None)
    with send_model(workload, spec.target) as file:
        job = Job(
            "try",
            spec,
            chosen,
            file.source,
            effort=EFFORTS[effort],
            settings=file.settings,
            structure=structure(workload.call),
        )
        study = PlanStudy(job, launcher or ProcessLauncher(), FIT_LIMIT_S, lambda _stage: None)
        study.inspect()  # as random answers are verified by their distribution
        return fit_sizes(study, start, largest)


@dataclass(frozen=True, slots=True)
class Scaling(DerivedJob):
    """Has a worker find out which dimension of the inputs is the batch.

    Attributes:
        job: the workload.
        dim: the dimension that the user named, which is only checked, or None to find it.
    """

    FUNCTION = "torchwise.diagnose.analyze_worker:find_batch_dim"
    job: Job
    dim: int | None = None


def check_sizes(sizes: tuple[int, ...]) -> None:
    """Refuse values that are no batch sizes.

    Raises:
        WorkloadError: a size is no whole number of at least 1.
    """
    for size in sizes:
        if not is_count(size):
            raise WorkloadError(f"batch size is {size!r}, but must be a whole number of at least 1")
