"""A launcher for one device of a Ray cluster, or for another device of the same kind if that one is lost."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from torchwise import __version__
from torchwise.cluster.device_actor import HEARD_S, ActorInfo, DeviceActor
from torchwise.cluster.library import connect, nodes_with
from torchwise.environment import Environment
from torchwise.errors import InputError, UnsupportedError
from torchwise.records import Failure, FailureKind, WorkerStage
from torchwise.trial import WAITING, Job, Limits
from torchwise.trial.launcher import OnStage
from torchwise.trial.worker import Assignment

RETRIES = 2
"""Restarts of a job after its node or Ray's process there was lost, as the job itself may be the cause."""
ASKING_S = 20.0
"""Seconds to wait for one node's device before asking another node."""
PATIENCE_S = 120.0
"""Seconds to wait for the return of a node of the same kind if none is left."""
SILENT_S = 60.0 + HEARD_S
"""Seconds without an answer after which a seat counts as lost."""
_READ_BY_TORCH = re.compile("(TORCH|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|TRITON|OMP|MKL|KMP|CUBLAS|CUDNN)_")
"""The variables of the user's environment that PyTorch reads.

All others stay here, above all secrets, and so do variables that hold a path.
"""

Note = Callable[[str], None]


class LostError(Exception):
    """The reserved device is gone. This error never leaves this module."""


class RayLauncher:
    """Runs jobs on one device of a cluster, reserved until `close`.

    The first device from Ray sets the kind of hardware and software. If a job must move, it moves only to a device with
    the same fingerprint. So measurements of different machines never meet in one study.
    """

    def __init__(
        self, device: str, address: str | None = None, *, note: Note | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        """Reserve a device.

        Args:
            device: "cpu" (a node's processor) or "cuda" (one GPU).
            address: address of the cluster, as for `connect`.
            note: receives messages for the user, such as the loss of a node.
            patience_s: seconds to wait for a node of the same kind if none is left.

        Raises:
            InputError: no cluster answers, or none of its nodes has such a device.
            UnsupportedError: Ray is missing here, or the node has another version of Torchwise.
        """
        self._device, self._note, self._patience_s = device, note or _unheard, patience_s
        self._ray = connect(address)
        self._seat: Any = None
        self._stage = WorkerStage.START
        self._kind: Environment | None = None
        self._take(_unheard)

    @property
    def environment(self) -> Environment:
        """The environment of the measurements, which is the first device's."""
        assert self._kind is not None, "a launcher that has no device was never made"
        return self._kind

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
        """Run `job` (see `Launcher.run`).

        Raises:
            UnsupportedError: no device of the same kind is left, and none came back in time.
        """
        if not isinstance(job, Job) or job.source is not None:
            raise UnsupportedError(
                "a cluster tries targets only, such as package.module:factory or path/file.py:factory"
            )
        job, lost = replace(job, environment=_portable(job.environment)), ""
        for _ in range(1 + RETRIES):
            try:
                if self._seat is None:
                    self._take(on_stage)
                return self._converse(job, limits, on_stage)
            except LostError as error:
                lost = str(error)
                self._note(f"a device of the cluster was lost ({lost}): what ran there is run elsewhere")
                self.close()
            except BaseException:  # raised again: nobody waits for this job any more, so stop it
                self.close()
                raise
        return Failure(
            FailureKind.DIED, self._stage, f"its node or Ray's process there was lost {1 + RETRIES} times: {lost}"
        )

    def close(self) -> None:
        """Release the device, and end its processes."""
        seat, self._seat = self._seat, None
        if seat is not None and self._ray.is_initialized():
            with contextlib.suppress(Exception):  # it may be gone, with any error of Ray
                self._ray.get(seat.close.remote(), timeout=HEARD_S + 1)
            with contextlib.suppress(Exception):  # as above
                self._ray.kill(seat)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _converse(self, job: Job, limits: Limits, on_stage: OnStage) -> str | Failure:
        self._get(self._seat.begin.remote(job, limits))
        while True:
            for kind, payload in self._get(self._seat.hear.remote()):
                if kind == "error":
                    raise payload
                if kind == "answer":
                    answer: str | Failure = payload
                    return answer
                self._stage = WorkerStage(payload)
                on_stage(payload)

    def _take(self, on_stage: OnStage) -> None:
        """Reserve a device of the first one's kind, and wait while all are in use."""
        unlike: set[str] = set()
        deadline = time.monotonic() + self._patience_s
        on_stage(WAITING)
        while self._seat is None:
            nodes = [node["NodeID"] for node in nodes_with(self._ray, self._device) if node["NodeID"] not in unlike]
            if nodes:
                deadline = time.monotonic() + self._patience_s
            elif self._kind is None:
                raise InputError(_none_fits(self._ray, self._device))
            elif time.monotonic() > deadline:
                raise UnsupportedError(self._none_left())
            else:
                time.sleep(1)
            # Ray knows the free nodes, and chooses one. Once some nodes are excluded, the others are requested by name.
            for node in nodes if unlike else [None] * bool(nodes):
                if (about := self._ask(node)) and self._is_of_the_kind(about):
                    break
                unlike |= {about.node} if about else set()
                self.close()
        on_stage(WorkerStage.START)

    def _is_of_the_kind(self, about: ActorInfo) -> bool:
        self._kind = self._kind or about.environment
        return self._kind.fingerprint == about.environment.fingerprint

    def _none_left(self) -> str:
        here = self.environment
        return (
            f"no node like {here.hostname} (fingerprint {here.fingerprint}) came back to the cluster within "
            f"{self._patience_s:.0f} s; finished trials are kept, and the same command goes on"
        )

    def _ask(self, node: str | None) -> ActorInfo | None:
        """Request a device of `node`, or of any node.

        Returns:
            Its description, or None if it is in use or the node is gone.

        Raises:
            UnsupportedError: Torchwise cannot run there, or is of another version.
        """
        options: dict[str, Any] = _choose_resources(self._ray, self._device, node)
        options["max_concurrency"] = 2  # allows `close` while `hear` waits
        if node is not None:
            affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            options["scheduling_strategy"] = affinity
        self._seat = self._ray.remote(DeviceActor).options(**options).remote(os.getcwd(), _portable(dict(os.environ)))
        try:
            about: ActorInfo = self._get(self._seat.about.remote(self._device), ASKING_S)
        except LostError as error:
            self.close()
            told = str(error.__cause__)
            if "creation task" in told or "ModuleNotFoundError" in told:  # Ray's message has many lines
                raise UnsupportedError(
                    "Torchwise cannot run on the nodes, where it must be installed as it is here: "
                    + told.strip().splitlines()[-1]
                ) from None
            return None
        if about.version != __version__:
            self.close()
            raise UnsupportedError(
                f"node {about.environment.hostname} has Torchwise {about.version}, but must have {__version__} as here"
            )
        return about

    def _get(self, ref: Any, timeout_s: float = SILENT_S) -> Any:
        """Return a seat's answer.

        Raises:
            LostError: the seat is gone, or silent.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=timeout_s)
        except errors.RayTaskError:  # an error in the seat's code, not of the cluster
            raise
        except errors.RayError as error:
            raise LostError(f"{type(error).__name__}: {error}".splitlines()[0]) from error


def _choose_resources(ray: Any, device: str, node: str | None) -> dict[str, float]:
    """Return the resources to reserve for a seat.

    These are a GPU, or more than half of a node's CPUs, so that no two seats share a processor.
    """
    if device == "cuda":
        return {"num_gpus": 1, "num_cpus": 1}
    fitting = [int(n["Resources"]["CPU"]) for n in nodes_with(ray, device) if node in (None, n["NodeID"])]
    return {"num_cpus": max(fitting, default=1) // 2 + 1}


def _portable(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if _READ_BY_TORCH.match(name) and "/" not in value}


def _none_fits(ray: Any, device: str) -> str:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    have = "; ".join(f"{node['NodeManagerHostname']} has {_describe_resources(node['Resources'])}" for node in nodes)
    needed = "a GPU" if device == "cuda" else "a CPU"
    return f"device is {device!r}, but no node of the cluster has {needed} to reserve ({have or 'it has no nodes'})"


def _describe_resources(resources: dict[str, float]) -> str:
    return f"{resources.get('CPU', 0):.0f} CPUs and {resources.get('GPU', 0):.0f} GPUs"


def _unheard(text: str) -> None:
    """Ignore a message."""
