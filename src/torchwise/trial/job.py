"""The order for a worker and its answer: plain data, no tensors and no models."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torchwise.measure.device_lock import OWN_CORES
from torchwise.plan import EAGER, Plan, Trait
from torchwise.plan.effort import EFFORTS, EffortProfile
from torchwise.plan.workload_spec import BatchDim, WorkloadSpec
from torchwise.records import Costs, Measurement, Verdict
from torchwise.records.statistics import Seconds

Task = Literal["inspect", "check", "try", "warm", "duel"]


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of PyTorch in the user's process that change eager's results or speed, copied to the worker."""

    matmul_precision: str
    default_dtype: str
    threads: int
    cudnn_benchmark: bool
    cudnn_tf32: bool
    deterministic: bool

    @classmethod
    def from_this_process(cls) -> ProcessSettings:
        """Read the settings, which imports torch."""
        import torch

        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:
            # The user set it through the newer `fp32_precision`, which cannot be mixed with this reading.
            precision = "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"
        return cls(
            precision,
            str(torch.get_default_dtype()).removeprefix("torch."),
            torch.get_num_threads(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.allow_tf32,
            torch.are_deterministic_algorithms_enabled(),
        )

    def apply(self) -> None:
        """Set them in this process."""
        import torch

        # A setting that is right already is not set: PyTorch's cache keys differ for a default and the same value set.
        if self.matmul_precision != ProcessSettings.from_this_process().matmul_precision:
            torch.set_float32_matmul_precision(self.matmul_precision)
        torch.set_default_dtype(getattr(torch, self.default_dtype))
        torch.set_num_threads(self.threads)
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.use_deterministic_algorithms(self.deterministic)


@dataclass(frozen=True, slots=True)
class Job:
    """The order for a worker.

    Attributes:
        task: "inspect" the plain model, "try" a plan, start it "warm" from the caches of a try and time it once more,
            or time it in a "duel".
        workload: the requested workload.
        plan: the candidate.
        source: file with a live Python model, written by this very run, or None to load the target.
        traits: from the inspection, and empty for the inspection itself.
        effort: how carefully.
        prune_below: stop measuring once the speed-up certainly lies below this.
        baseline_s: seconds per call of the plain model in its inspection, or None if it was not inspected.
        cache_dir: compile caches of this candidate alone.
        settings: of the user's process, or None for PyTorch's own defaults.
        structure: of a live model, found while its source code is at hand, or None to find it in the worker.
        structure_details: the parts of the structure, packed, or "" for none.
        environment: variables of this process to set in the worker, as the worker's server may be older than they.
        rival: the other plan of a duel.
        expected_s: in a duel, seconds per call of the plan and of its rival in their trials.
        cold: whether a "warm" start, or a contest, times with cold processor caches as well.
        batch: run on the first example alone, at this batch size, or None for that of the workload.
        reads: file for what loading the target reads (`trial/loading_reads.py`), or "" for none.
        tries_sizes: whether the inspection also finds out if the model takes inputs of other sizes.
        stays: whether the worker of an inspection does the first trial as well, if the model is still as it was loaded.
        cores: the CPU cores of this worker alone, or none if it may use all of this process's.
    """

    task: Task
    workload: WorkloadSpec
    plan: Plan = EAGER
    source: str | None = None
    traits: frozenset[Trait] = frozenset()
    effort: EffortProfile = EFFORTS["standard"]
    prune_below: float | None = None
    baseline_s: float | None = None
    cache_dir: str = ""
    settings: ProcessSettings | None = None
    structure: str | None = None
    structure_details: str = ""
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    rival: Plan | None = None
    expected_s: tuple[float | None, float | None] = (None, None)
    cold: bool = False
    batch: BatchDim | None = None
    reads: str = ""
    tries_sizes: bool = False
    stays: bool = False
    cores: tuple[int, ...] = ()

    def identity_of(self, workload: str) -> str:
        """Return the identity of a workload under this job's settings, which change what eager does, and its rules."""
        rules = [*([] if self.settings is None else [str(self.settings)]), *self.workload.list_rules()]
        return hashlib.sha256(" ".join([workload, *rules]).encode()).hexdigest()[:16] if rules else workload

    def variables(self) -> dict[str, Any]:
        """Return every environment variable that the worker must see."""
        caches = {"TORCHINDUCTOR_CACHE_DIR": self.cache_dir, "TRITON_CACHE_DIR": f"{self.cache_dir}/triton"}
        plain = {"TORCHWISE_DISABLE": "1"}  # parts of a candidate are plain here: a worker seeks no plans for them
        own_cores = {OWN_CORES: "1"} if self.cores else {}
        return {**self.environment, **(caches if self.cache_dir else {}), **own_cores, **plain}


class DerivedJob:
    """Base of further orders for a worker: another task on a job's workload, under the job's variables.

    Attributes:
        FUNCTION: the worker's function, as `module:function`. In braces it may name fields of the order, "{0.step}".
    """

    __slots__ = ()
    FUNCTION: ClassVar[str]
    job: Job

    @property
    def task(self) -> str:
        """The function that the worker runs."""
        return self.FUNCTION.format(self)

    def variables(self) -> dict[str, Any]:
        """Return every environment variable that the worker must see."""
        return self.job.variables()


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of a trial, with no measurement if the verdict is no pass.

    Attributes:
        graph_break: the first graph break with its line, of a plan that is not surely faster than eager, or "".
        digest: of the answers' bits, if those of another process must be equal, or "".
        instead: a rewrite that the user's limit refuses, and the one with fewer parts that passes it, or None.
        share: of the model's operators that the backend takes, and why not more, or "" if it takes all.
    """

    costs: Costs
    verdict: Verdict
    measurement: Measurement | None = None
    graph_break: str = ""
    digest: str = ""
    instead: tuple[str, str] | None = None
    share: str = ""


@dataclass(frozen=True, slots=True)
class Restart:
    """The result of a verified plan in one more fresh process: its measurement against eager there.

    Attributes:
        warm_s: seconds that the first calls took beyond steady ones, from the existing caches.
        digest: as that of the attempt.
    """

    warm_s: Seconds
    measurement: Measurement
    digest: str = ""
