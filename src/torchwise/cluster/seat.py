"""The node's side: an actor of Ray that holds one device and runs jobs there as they run on any machine."""

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
"""Seconds after which a seat answers that there is nothing new, so that silence means that it is gone."""
GIVEN_BY_RAY = "OMP_NUM_THREADS"
"""Ray sets it to the CPUs that were reserved, which would slow the plain model down and flatter every plan."""


@dataclass(frozen=True, slots=True)
class About:
    """What a seat says of itself.

    Attributes:
        node: Ray's id of the node.
        version: of Torchwise there.
        environment: of the device that it holds.
    """

    node: str
    version: str
    environment: Environment


class Seat:
    """One device of one node.

    Jobs run in processes of their own by `ProcessLauncher`, so that limits, crashes and what is said of them are those
    of any machine. Ray gives this process its device through CUDA_VISIBLE_DEVICES, and they inherit it.
    """

    def __init__(self, folder: str, variables: dict[str, str]) -> None:
        """Take the place of the user's process, as far as this node has what that has.

        Args:
            folder: the user's working folder; where this node has none, Ray's own working folder stays.
            variables: of the environment, for PyTorch.
        """
        if Path(folder).is_dir():
            os.chdir(folder)
        _undo_ray()
        os.environ.update(variables)
        self._launcher = ProcessLauncher()
        self._said: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._caches: tempfile.TemporaryDirectory[str] | None = None
        self._caches_of = ""

    def about(self, device: str) -> About:
        """Say where this is."""
        import ray

        return About(ray.get_runtime_context().get_node_id(), __version__, environment.detect(device))

    def begin(self, job: Job, limits: Limits) -> None:
        """Begin a job; `hear` tells how it goes. The limit of memory is this node's own."""
        here = Limits.of_this_machine(limits.time_s)
        threading.Thread(target=self._run, args=(job, here), daemon=True, name="torchwise-job").start()

    def hear(self) -> list[tuple[str, Any]]:
        """Return what was said since: ("stage", name), ("answer", what `Launcher.run` returns) or ("error", raised)."""
        said = []
        with contextlib.suppress(queue.Empty):
            said.append(self._said.get(timeout=HEARD_S))
            while True:
                said.append(self._said.get_nowait())
        return said

    def close(self) -> None:
        """Remove what lies on this node."""
        if self._caches:
            self._caches.cleanup()

    def _run(self, job: Job, limits: Limits) -> None:
        try:
            self._said.put(("answer", self._answer(job, limits)))
        except Exception as error:  # whatever it was, it is raised again where the job came from
            self._said.put(("error", error))

    def _answer(self, job: Job, limits: Limits) -> str | Failure:
        if not job.cache_dir:
            return self._launch(job, limits)
        is_known = job.cache_dir == self._caches_of
        job = replace(job, cache_dir=self._folder_of(job.cache_dir))
        if job.task == "warm" and not is_known:  # the node that tried this plan is gone, and its caches with it
            tried = self._launch(replace(job, task="try"), limits)
            if isinstance(tried, Failure):
                return tried
        return self._launch(job, limits)

    def _launch(self, job: Job, limits: Limits) -> str | Failure:
        return self._launcher.run(job, limits, lambda stage: self._said.put(("stage", stage)))

    def _folder_of(self, name: str) -> str:
        """Return this node's folder for the caches that the user's process calls `name`, and forget all others."""
        if self._caches is None or name != self._caches_of:
            self.close()
            self._caches = tempfile.TemporaryDirectory(prefix="torchwise-cache-", ignore_cleanup_errors=True)
            self._caches_of = name
        return self._caches.name


def _undo_ray() -> None:
    """Have the number of threads that the node's administrator chose, or none: not the one that Ray chose."""
    with contextlib.suppress(psutil.Error):
        chosen = psutil.Process(os.getppid()).environ().get(GIVEN_BY_RAY)  # that of the raylet, which starts us
        os.environ.pop(GIVEN_BY_RAY, None)
        if chosen is not None:
            os.environ[GIVEN_BY_RAY] = chosen
