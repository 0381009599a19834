"""The node's side: a Ray actor that holds one device and runs jobs as on any machine."""

from __future__ import annotations

import contextlib
import os
import queue
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from torchwise import __version__, environment
from torchwise.environment import Environment
from torchwise.records import Failure
from torchwise.trial import Job, Limits, ProcessLauncher

HEARD_S = 5.0
"""Seconds after which a seat answers that there is nothing new, so that only a lost seat is silent."""
GIVEN_BY_RAY = "OMP_NUM_THREADS"
"""Ray sets this variable to the number of reserved CPUs.

That would slow the original model down and flatter every plan.
"""


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """The description of a seat.

    Attributes:
        node: Ray's id of the node.
        version: Torchwise's version there.
        environment: environment of its device.
    """

    node: str
    version: str
    environment: Environment


class DeviceActor:
    """One device of one node.

    `ProcessLauncher` runs each job in its own process, so that limits, crashes and messages are the same as on any
    machine. Ray assigns the device through CUDA_VISIBLE_DEVICES, which the processes inherit.
    """

    def __init__(self, folder: str, variables: dict[str, str]) -> None:
        """Adopt the environment of the user's process, as far as this node has the same.

        Args:
            folder: the user's working folder. If this node lacks it, Ray's working folder stays.
            variables: environment variables for PyTorch.
        """
        if Path(folder).is_dir():
            os.chdir(folder)
        _restore_thread_count()
        os.environ.update(variables)
        self._launcher = ProcessLauncher()
        self._said: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._caches: tempfile.TemporaryDirectory[str] | None = None
        self._caches_of = ""

    def describe(self, device: str) -> ActorInfo:
        """Return this seat's description."""
        import ray

        return ActorInfo(ray.get_runtime_context().get_node_id(), __version__, environment.detect(device))

    def begin(self, job: Job, limits: Limits) -> None:
        """Start a job, whose progress `hear` returns. The memory limit is this node's own."""
        here = Limits.from_free_memory(limits.time_s)
        threading.Thread(target=self._run, args=(job, here), daemon=True, name="torchwise-job").start()

    def hear(self) -> list[tuple[str, Any]]:
        """Return the messages since the last call.

        Each is ("stage", name), ("answer", the result of `Launcher.run`) or ("error", the raised error).
        """
        said = []
        with contextlib.suppress(queue.Empty):
            said.append(self._said.get(timeout=HEARD_S))
            while True:
                said.append(self._said.get_nowait())
        return said

    def close(self) -> None:
        """Remove the caches on this node."""
        if self._caches:
            self._caches.cleanup()

    def _run(self, job: Job, limits: Limits) -> None:
        try:
            self._said.put(("answer", self._answer(job, limits)))
        except Exception as error:  # any error is raised again in the user's process
            self._said.put(("error", error))

    def _answer(self, job: Job, limits: Limits) -> str | Failure:
        if not job.cache_dir:
            return self._launch(job, limits)
        is_known = job.cache_dir == self._caches_of
        job = replace(job, cache_dir=self._folder_of(job.cache_dir))
        if job.task == "warm" and not is_known:  # the node with this plan's caches is gone
            tried = self._launch(replace(job, task="try"), limits)
            if isinstance(tried, Failure):
                return tried
        return self._launch(job, limits)

    def _launch(self, job: Job, limits: Limits) -> str | Failure:
        return self._launcher.run(job, limits, lambda stage: self._said.put(("stage", stage)))

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
        chosen = psutil.Process(os.getppid()).environ().get(GIVEN_BY_RAY)  # of the raylet, our parent
        os.environ.pop(GIVEN_BY_RAY, None)
        if chosen is not None:
            os.environ[GIVEN_BY_RAY] = chosen
