"""The node's side: a Ray actor that reserves one device and runs jobs on it."""

from __future__ import annotations

import contextlib
import os
import queue
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from torchwise import __version__, environment
from torchwise.environment import Environment
from torchwise.records import Failure
from torchwise.trial import DerivedJob, Job, Limits, ProcessLauncher

Order = Job | DerivedJob
T = TypeVar("T", bound=Order)

POLL_S = 5.0
"""Seconds after which an actor answers without new messages, so that only a lost actor is silent."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Ray sets this variable to the number of reserved CPUs.

That would slow the original model down, and exaggerate the speed-up of every plan.
"""


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """The description of an actor.

    Attributes:
        node: Ray's id of the node.
        environment: the environment of its device.
    """

    node: str
    version: str
    environment: Environment


def job_of(order: Order) -> Job:
    """Return the job of an order: itself, or that of a derived one."""
    return order.job if isinstance(order, DerivedJob) else order


def change_job(order: T, **changes: Any) -> T:
    """Return an order with changes to its job."""
    if isinstance(order, DerivedJob):
        changes = {"job": replace(order.job, **changes)}
    return replace(order, **changes)  # type: ignore[type-var]  # every derived job is a dataclass


class DeviceActor:
    """One device of one node.

    `ProcessLauncher` runs each job in its own process, so that limits, crashes and messages are the same as on any
    machine. Ray assigns the device through CUDA_VISIBLE_DEVICES, which the processes inherit.
    """

    def __init__(self, folder: str, variables: dict[str, str]) -> None:
        """Adopt the working folder and environment variables of the user's process.

        Args:
            folder: the user's working folder. If this node lacks it, Ray's working folder stays.
            variables: environment variables for PyTorch.
        """
        if Path(folder).is_dir():
            os.chdir(folder)
        _restore_thread_count()
        os.environ.update(variables)
        self._launcher = ProcessLauncher()
        self._messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._caches: tempfile.TemporaryDirectory[str] | None = None
        self._caches_of = ""

    def describe(self, device: str) -> ActorInfo:
        """Return this actor's description."""
        import ray

        return ActorInfo(ray.get_runtime_context().get_node_id(), __version__, environment.detect(device))

    def begin(self, job: Order, limits: Limits) -> None:
        """Start a job, whose progress `poll` returns. The memory limit is that of this node."""
        own_limits = replace(limits, memory_bytes=Limits.from_free_memory(limits.time_s).memory_bytes)
        threading.Thread(target=self._run, args=(job, own_limits), daemon=True, name="torchwise-job").start()

    def poll(self) -> list[tuple[str, Any]]:
        """Return the messages since the last call.

        Each is ("stage", name), ("answer", the result of `Launcher.run`) or ("error", the raised error).
        """
        messages = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._messages.get(timeout=POLL_S))
            while True:
                messages.append(self._messages.get_nowait())
        return messages

    def close(self) -> None:
        """Remove the caches on this node."""
        if self._caches:
            self._caches.cleanup()

    def _run(self, job: Order, limits: Limits) -> None:
        try:
            self._messages.put(("answer", self._answer(job, limits)))
        except Exception as error:  # any error is raised again in the user's process
            self._messages.put(("error", error))

    def _answer(self, job: Order, limits: Limits) -> str | Failure:
        if not (name := job_of(job).cache_dir):
            return self._launch(job, limits)
        is_known = name == self._caches_of
        job = change_job(job, cache_dir=self._folder_of(name))
        if (
            isinstance(job, Job) and job.task == "warm" and not is_known
        ):  # another node had this plan's caches, and is gone
            first = self._launch(replace(job, task="try"), limits)
            if isinstance(first, Failure):
                return first
        return self._launch(job, limits)

    def _launch(self, job: Order, limits: Limits) -> str | Failure:
        return self._launcher.run(job, limits, lambda stage: self._messages.put(("stage", stage)))

    def _folder_of(self, name: str) -> str:
        """Return this node's folder for the user's cache folder `name`, and remove any other."""
        if self._caches is None or name != self._caches_of:
            self.close()
            self._caches = tempfile.TemporaryDirectory(prefix="torchwise-cache-", ignore_cleanup_errors=True)
            self._caches_of = name
        return self._caches.name


def _restore_thread_count() -> None:
    """Restore the number of threads that the node's administrator chose, or none, instead of Ray's choice."""
    with contextlib.suppress(psutil.Error):
        chosen = psutil.Process(os.getppid()).environ().get(THREADS_VARIABLE)  # of the raylet, our parent
        os.environ.pop(THREADS_VARIABLE, None)
        if chosen is not None:
            os.environ[THREADS_VARIABLE] = chosen
