"""Other batch sizes: the job that finds the batch dimension, and `torchwise.fit_batch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchwise.diagnose.requests import make_spec, plan_of
from torchwise.errors import InputError, WorkloadError, is_count, is_positive
from torchwise.parsing import to_bytes
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import BatchDim
from torchwise.records import Decision, Trial
from torchwise.records.scale import BatchFit, SizeTried
from torchwise.study.one_plan import PlanStudy
from torchwise.trial import DerivedJob, Job, Launcher, ProcessLauncher, send_model
from torchwise.workload import Workload
from torchwise.workload.target import read_workload

FIT_LIMIT_S = 600.0
REFINEMENTS = 2
"""Sizes tried between the largest that fitted and the smallest that did not, each halfway."""


def fit_batch(
    model: Callable[..., Any] | Workload,
    args: Any = None,
    *,
    plan: Plan | Decision | str | None = "eager",
    memory_limit: int | str | None = None,
    largest: int = 65_536,
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
        largest: no larger batch is tried.
        effort: how carefully each size is measured: "quick", "standard" or "thorough".
        launcher: where the workers run, by default processes of this machine.

    Raises:
        InputError: an argument cannot be used, or the inputs have no batch.
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
    mode = "training" if workload.step else "inference"
    spec = make_spec(model, workload, None, mode=mode, objective="throughput", calls=1, restarts=1)
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
        tried = _Search(study, most).run(start, largest)
    return BatchFit(spec.target, chosen, tried, most)


class _Search:
    def __init__(self, study: PlanStudy, memory_limit: int | None) -> None:
        self._study = study
        self._limit = memory_limit
        self._tried: dict[int, SizeTried] = {}

    def run(self, start: int, largest: int) -> tuple[SizeTried, ...]:
        size, good, bad = start, 0, None
        while size <= largest:
            if self._try(size).problem:
                bad = size
                break
            good, size = size, size * 2
        for _ in range(REFINEMENTS if bad is not None and good else 0):
            assert bad is not None
            between = (good + bad) // 2
            if between in self._tried:
                break
            if self._try(between).problem:
                bad = between
            else:
                good = between
        return tuple(self._tried[size] for size in sorted(self._tried))

    def _try(self, size: int) -> SizeTried:
        self._tried[size] = self._judge_size(size, self._study.try_plan(batch=BatchDim(0, size)))
        return self._tried[size]

    def _judge_size(self, size: int, trial: Trial) -> SizeTried:
        peak = trial.costs.peak_memory if trial.costs else None
        if not trial.is_verified or trial.measurement is None:
            return SizeTried(size, peak_memory=peak, problem=trial.reason)
        throughput = size / trial.measurement.candidate_time.mid
        if self._limit is not None and (peak is None or peak > self._limit):
            shown = "an unknown amount" if peak is None else f"{peak / 2**20:.0f} MiB"
            return SizeTried(size, throughput, peak, f"takes {shown}, above the limit of {self._limit / 2**20:.0f} MiB")
        return SizeTried(size, throughput, peak)


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
