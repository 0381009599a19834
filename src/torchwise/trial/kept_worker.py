"""The worker that has inspected a model: it stays for the first trial, with the model loaded.

Each candidate still has a process that no other candidate has used: the inspection runs the plain model alone, and its
result is safe by then. A first trial that fails in such a process is repeated in a fresh one, so that nothing the
inspection left can be the reason. This is the parent's side. `loaded_model` is the worker's, which decides whether it
stays at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from torchwise.records import Failure, FailureKind
from torchwise.trial.job import Job
from torchwise.trial.limits import Limits
from torchwise.trial.worker import Assignment, MessageKind
from torchwise.trial.worker_process import WorkerProcess, end_process, measure_resident

DEVICES = ("cpu",)
"""Devices on which an inspection's worker goes on. On a GPU it has used the profiler by then, whose tracing library may
stay attached to the driver, slow down launches and break the capture of graphs."""
ANSWER_S = 5.0
"""Seconds in which a worker that has stayed takes its next job, or else another one is started."""
OUT_OF_TIME = (FailureKind.TIMED_OUT, FailureKind.INTERFERED, FailureKind.OUT_OF_BUDGET)
"""Failures that a fresh process would not help, as no time is left for it."""


def with_stay(job: Job) -> Job:
    """Return the order to inspect a model whose worker stays, or the same one if its model is loaded in another form.

    A trial then has further sizes or another batch.
    """
    spec = job.workload
    is_plain = spec.sizes != "varying" and spec.batch is None and job.batch is None
    has_more = job.tries_sizes or bool(spec.require)
    return replace(job, stays=spec.device in DEVICES and is_plain and not has_more)


def may_follow(first: Assignment, job: Assignment) -> bool:
    """Return whether a job finds in the worker of the first one the model, the settings and the cores that it needs."""
    if not (isinstance(first, Job) and isinstance(job, Job)) or job.task != "try":
        return False
    return replace(job, **{name: getattr(first, name) for name in _OF_A_TRIAL}) == first


_OF_A_TRIAL = ("task", "plan", "traits", "prune_below", "baseline_s", "cache_dir", "reads", "stays")
"""The fields in which the order of a trial differs from that of the inspection."""


@dataclass(frozen=True, slots=True)
class KeptWorker:
    """A worker in the parent, with the job that it was started for."""

    process: WorkerProcess
    receiver: Connection
    folder: TemporaryDirectory[str]
    job: Assignment

    @property
    def log(self) -> Path:
        """The file of its output."""
        return Path(self.folder.name, "output")

    def hand_over(self, job: Assignment) -> bool:
        """Give the worker its next job, and return whether it has taken it."""
        try:
            self.receiver.send(job)
            return self.receiver.poll(ANSWER_S) and self.receiver.recv()[0] is MessageKind.STAYS
        except (EOFError, OSError):  # it has ended, as nobody asked it for long
            return False

    def grant_own_memory(self, limits: Limits) -> Limits:
        """Return the limits with the memory that the worker holds already, which is not free."""
        return replace(limits, memory_bytes=limits.memory_bytes + measure_resident(self.process.pid))

    def end(self) -> None:
        """End the worker, and delete its folder."""
        end_process(self.process)
        self.close()

    def close(self) -> None:
        """Delete the folder of a worker that has ended."""
        self.receiver.close()
        self.folder.cleanup()


def is_settled(answer: str | Failure) -> bool:
    """Return whether the answer of a worker that has stayed counts, and is not sought again in a fresh process."""
    return not isinstance(answer, Failure) or answer.kind in OUT_OF_TIME
