"""Analyses as real runs leave them, and a launcher that answers as their workers would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from builders import CREATED_AT, EAGER_S, HERE, PASSED, WRONG, a_measurement, a_plan, a_trial, an_inspection, samples
from torchwise.diagnose.analyze_advice import advise
from torchwise.plan import Plan
from torchwise.plan.workload_spec import BatchDim, WorkloadSpec
from torchwise.records import Costs, Failure, FailureKind, codec
from torchwise.records.analysis import Analysis, Batch, Consistency, Memory, Steady
from torchwise.records.listener import Listener
from torchwise.trial.job import Attempt

HANG = Failure(FailureKind.TIMED_OUT, "compile", "passed its limit of 600 s")
CRASH = Failure(FailureKind.DIED, "compile", "SIGSEGV")


def some_calls(seconds: float = EAGER_S, count: int = 400, *, noise: float = 0.02, seed: int = 0) -> Consistency:
    return Consistency(samples(seconds, count, noise=noise, seed=seed))


def a_steady(speedup: float = 1.5, **changes: Any) -> Steady:
    fields: dict[str, Any] = {
        "warm_s": 4.1,
        "plan": some_calls(EAGER_S / speedup, seed=1),
        "baseline": some_calls(seed=2),
        "memory": Memory(98 << 20, 19 << 20, 350 << 20, 312 << 20, 280 << 20),
    }
    return Steady(**{**fields, **changes})


def a_batch(size: int, growth: float = 0.3, speedup: float = 1.4) -> Batch:
    """Return a batch of which each doubling costs `growth` more."""
    import math

    seconds = EAGER_S / 32 * (1 + growth) ** math.log2(size)
    timed = a_measurement(candidate_s=samples(seconds / speedup, seed=size), baseline_s=samples(seconds, seed=size + 1))
    scale = a_measurement(candidate_s=samples(seconds, seed=size + 2), baseline_s=samples(EAGER_S, seed=size + 3))
    return Batch(size, timed, Costs(9.0), eager=scale)


def an_analysis(plan: Plan | None = None, speedup: float | None = 1.5, **changes: Any) -> Analysis:
    """Return the analysis of a plan this much faster than eager. Without a speed-up, the plan was not timed."""
    trial = a_trial(0, plan or a_plan(), speedup, verdict=PASSED if speedup else WRONG)
    fields: dict[str, Any] = {
        "workload": WorkloadSpec("zoo:vision.resnet50", device="cuda"),
        "environment": HERE,
        "inspection": an_inspection(),
        "trial": trial,
        "steady": a_steady(speedup) if speedup else None,
        "batches": tuple(map(a_batch, (1, 2, 4, 8))),
        "batch_note": "dimension 0 of the inputs, of size 32 in the given inputs",
        "created_at": CREATED_AT,
        "seconds": 94.0,
    }
    record = Analysis(**{**fields, **changes})
    return replace(record, advice=advise(record)) if "advice" not in changes else record


@dataclass
class Workers:
    """A launcher whose workers answer as told.

    Attributes:
        cold: the result of the try.
        steady: the result of the steady run.
        found: the result of the search for the batch dimension, or how it ends.
        batches: the results by batch size. A size that is not named gets 1.4 times.
        jobs: a word for each job, in order.
        folders: the compile caches of each job.
    """

    cold: Attempt | Failure = field(
        default_factory=lambda: Attempt(Costs(38.2, None, 312 << 20, 280 << 20), PASSED, a_measurement(1.5))
    )
    steady: Steady | Failure = field(default_factory=a_steady)
    found: BatchDim | Failure | Exception = field(default_factory=lambda: BatchDim(0, 32))
    batches: dict[int, Attempt | Failure | Exception] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def run(self, job: Any, limits: Any, on_stage: Callable[[str], None]) -> str | Failure:
        on_stage("load")
        task = job.task.rpartition(":")[2]
        batch = getattr(getattr(job, "job", job), "batch", None)
        self.jobs.append(f"{task} at {batch.size}" if batch else task)
        self.folders.append(getattr(job, "job", job).cache_dir)
        self.limits.append(limits.time_s)
        answers = {
            "inspect": an_inspection(),
            "try": self.cold,
            "measure_steady": self.steady,
            "find_batch_dim": self.found,
        }
        if task == "time_eager":
            assert job.given == 32
            answer: Any = a_batch(batch.size).eager
        else:
            answer = self._batch(batch.size) if batch else answers[task]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Failure) else codec.to_json(answer)

    def _batch(self, size: int) -> Attempt | Failure | Exception:
        batch = a_batch(size)
        assert batch.costs is not None
        return self.batches.get(size, Attempt(batch.costs, PASSED, batch.measurement))


class Heard(Listener):
    """A listener that remembers the phases."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def start_step(self, name: str) -> None:
        self.phases.append(name)
