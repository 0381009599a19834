"""A launcher for one device of a Ray cluster, or for another device of the same kind if that one is lost.

Ray is imported on first use.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import re
import time
from dataclasses import replace
from typing import Any, Self

from torchwise import __version__
from torchwise.environment import Environment
from torchwise.errors import BudgetError, InputError, UnsupportedError
from torchwise.installation import suggest_extra
from torchwise.records import Failure, FailureKind, WorkerStage
from torchwise.records.listener import Listener
from torchwise.records.trial import WAITING
from torchwise.study.cluster.device_actor import POLL_S, ActorInfo, DeviceActor, Order, change_job, job_of
from torchwise.trial import Limits
from torchwise.trial.launcher import OnStage
from torchwise.trial.worker import Assignment

RETRIES = 2
"""Restarts of a job after the loss of its node or of Ray's process there. The job itself may be the cause."""
RESERVE_S = 20.0
"""Seconds to wait for the device of one node before trying another node."""
PATIENCE_S = 120.0
"""Seconds to wait for the return of a node of the same kind if none is left."""
SILENCE_S = 60.0 + POLL_S
"""Seconds without an answer after which an actor counts as lost."""
_READ_BY_TORCH = re.compile("(TORCH|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|TRITON|OMP|MKL|KMP|CUBLAS|CUDNN)_")
"""Environment variables that PyTorch reads, which are sent to the node.

All others are not sent, such as secrets, nor are variables with a path.
"""


class LostError(Exception):
    """The reserved device is lost. This error never leaves this module."""


class RayLauncher:
    """Runs jobs on one device of a cluster, reserved until `close`.

    The first device from Ray determines the fingerprint of hardware and software. A job may move only to a device with
    the same fingerprint. So a study never mixes measurements of different machines.
    """

    def __init__(
        self,
        device: str,
        address: str | None = None,
        *,
        listener: Listener | None = None,
        patience_s: float = PATIENCE_S,
        wait_s: float = math.inf,
    ) -> None:
        """Reserve a device.

        Args:
            patience_s: seconds to wait for a node of the same kind if none is left.
            wait_s: seconds to wait while all devices are in use.

        Raises:
            BudgetError: all of them are in use for so long.
            InputError: no cluster answers, or none of its nodes has such a device.
            UnsupportedError: Ray is missing here, or the node has another version of Torchwise.
        """
        self._device, self._listener, self._patience_s = device, listener or Listener(), patience_s
        self._ray = connect(address)
        self._actor: Any = None
        self._stage = WorkerStage.START
        self._reference: Environment | None = None
        if not self._reserve(Listener().stage, time.monotonic() + wait_s):
            raise BudgetError("the budget ended before a device of the cluster was free. Give a larger budget")

    @property
    def environment(self) -> Environment:
        """The environment of the measurements, which is the first device's."""
        assert self._reference is not None, "a launcher always had a device"
        return self._reference

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
        """Run `job` (see `Launcher.run`).

        Raises:
            UnsupportedError: no device of the same kind is left, and none came back in time.
        """
        if not isinstance(job, Order) or job_of(job).source is not None:
            raise UnsupportedError(
                "a cluster tries targets only, such as package.module:factory or path/file.py:factory"
            )
        job, reason = change_job(job, environment=_select_portable(job_of(job).environment)), ""
        end = time.monotonic() + limits.end_s
        for _ in range(1 + RETRIES):
            try:
                if self._actor is None and not self._reserve(on_stage, end):
                    waited = f"waited {limits.end_s:.0f} s for a device of the cluster"
                    return Failure(FailureKind.INTERFERED, WorkerStage.START, waited)
                return self._run_on_actor(job, replace(limits, end_s=end - time.monotonic()), on_stage)
            except LostError as error:
                reason = str(error)
                self._listener.note(
                    f"a device of the cluster was lost ({reason}): its job is repeated on another device"
                )
                self.close()
            except BaseException:  # raised again: the job is no longer needed
                self.close()
                raise
        return Failure(
            FailureKind.DIED, self._stage, f"its node or Ray's process there was lost {1 + RETRIES} times: {reason}"
        )

    def close(self) -> None:
        """Release the device, and end its processes."""
        actor, self._actor = self._actor, None
        if actor is not None and self._ray.is_initialized():
            with contextlib.suppress(Exception):  # it may be lost, with any error of Ray
                self._ray.get(actor.close.remote(), timeout=POLL_S + 1)
            with contextlib.suppress(Exception):  # as above
                self._ray.kill(actor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run_on_actor(self, job: Order, limits: Limits, on_stage: OnStage) -> str | Failure:
        self._get(self._actor.begin.remote(job, limits))
        while True:
            for kind, payload in self._get(self._actor.poll.remote()):
                if kind == "error":
                    raise payload
                if kind == "answer":
                    answer: str | Failure = payload
                    return answer
                self._stage = WorkerStage(payload)
                on_stage(payload)

    def _reserve(self, on_stage: OnStage, end: float) -> bool:
        """Reserve a device with the fingerprint of the first one, and wait while all are in use.

        Returns:
            Whether there was one before `end`, a time by `time.monotonic`.
        """
        unsuitable: set[str] = set()
        deadline = time.monotonic() + self._patience_s
        on_stage(WAITING)
        while self._actor is None:
            if time.monotonic() >= end:
                return False
            nodes = [node["NodeID"] for node in nodes_with(self._ray, self._device) if node["NodeID"] not in unsuitable]
            if nodes:
                deadline = time.monotonic() + self._patience_s
            elif self._reference is None:
                raise InputError(_describe_no_device(self._ray, self._device))
            elif time.monotonic() > deadline:
                raise UnsupportedError(self._describe_loss())
            else:
                time.sleep(1)
            # Ray chooses a free node. Once some nodes are excluded, the others are requested by name.
            for node in nodes if unsuitable else [None] * bool(nodes):
                if (info := self._request_device(node, end)) and self._matches_reference(info):
                    break
                unsuitable |= {info.node} if info else set()
                self.close()
        on_stage(WorkerStage.START)
        return True

    def _matches_reference(self, info: ActorInfo) -> bool:
        self._reference = self._reference or info.environment
        return self._reference.fingerprint == info.environment.fingerprint

    def _describe_loss(self) -> str:
        here = self.environment
        return (
            f"no node like {here.hostname} (fingerprint {here.fingerprint}) returned to the cluster within "
            f"{self._patience_s:.0f} s; finished trials are saved, and the same command continues"
        )

    def _request_device(self, node: str | None, end: float) -> ActorInfo | None:
        """Request a device of `node`, or of any node, until `end`.

        Returns:
            Its description, or None if it is in use or the node is gone.
        """
        options: dict[str, Any] = _choose_resources(self._ray, self._device, node)
        options["max_concurrency"] = 2  # allows `close` while `poll` waits
        if node is not None:
            affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            options["scheduling_strategy"] = affinity
        self._actor = (
            self._ray.remote(DeviceActor).options(**options).remote(os.getcwd(), _select_portable(dict(os.environ)))
        )
        wait_s = min(RESERVE_S, max(end - time.monotonic(), 0.0))
        try:
            info: ActorInfo = self._get(self._actor.describe.remote(self._device), wait_s)
        except LostError as error:
            self.close()
            message = str(error.__cause__)
            if "creation task" in message or "ModuleNotFoundError" in message:  # Ray's message has many lines
                raise UnsupportedError(
                    "Torchwise cannot run on the nodes: the same version as here must be installed there: "
                    + message.strip().splitlines()[-1]
                ) from None
            return None
        if info.version != __version__:
            self.close()
            raise UnsupportedError(
                f"node {info.environment.hostname} has Torchwise {info.version}, but must have {__version__} as here"
            )
        return info

    def _get(self, ref: Any, timeout_s: float = SILENCE_S) -> Any:
        """Return an actor's answer."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=timeout_s)
        except errors.RayTaskError:  # an error in the actor's code, not of the cluster
            raise
        except errors.RayError as error:
            raise LostError(f"{type(error).__name__}: {error}".splitlines()[0]) from error


def _choose_resources(ray: Any, device: str, node: str | None) -> dict[str, float]:
    """Return the resources to reserve for an actor.

    These are a GPU, or more than half of a node's CPUs, so that no two actors share a processor.
    """
    if device == "cuda":
        return {"num_gpus": 1, "num_cpus": 1}
    fitting = [int(n["Resources"]["CPU"]) for n in nodes_with(ray, device) if node in (None, n["NodeID"])]
    return {"num_cpus": max(fitting, default=1) // 2 + 1}


def _select_portable(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if _READ_BY_TORCH.match(name) and "/" not in value}


def _describe_no_device(ray: Any, device: str) -> str:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    described = (
        f"{node['NodeManagerHostname']} has {node['Resources'].get('CPU', 0):.0f} CPUs "
        f"and {node['Resources'].get('GPU', 0):.0f} GPUs"
        for node in nodes
    )
    needed = "a GPU" if device == "cuda" else "a CPU"
    available = "; ".join(described) or "it has no nodes"
    return f"device is {device!r}, but no node of the cluster has {needed} to reserve ({available})"


def ray_library() -> Any:
    """Import Ray."""
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"a cluster needs {error.name}, which is not installed: {suggest_extra('ray')}"
        ) from error


def connect(address: str | None) -> Any:
    """Connect this process to a cluster, unless it is connected, and return Ray.

    Args:
        address: "HOST:PORT", "ray://HOST:PORT", "auto" or None. None means RAY_ADDRESS, the cluster of this machine, or
            a new one that ends with this process, in this order.

    Raises:
        UnsupportedError: Ray is not installed.
        InputError: no cluster answers there.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a new cluster sends no usage reports
    ray = ray_library()
    if not ray.is_initialized():
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except ImportError as error:
            raise UnsupportedError(
                f"address {address!r} needs Ray's client ({error}): {suggest_extra('ray')}"
            ) from error
        except (ConnectionError, RuntimeError, ValueError) as error:  # Ray has no specific error for this
            location = address or os.environ.get("RAY_ADDRESS", "this machine")
            raise InputError(
                f"no Ray cluster answers at {location} ({error}); start one with `ray start --head`, and set "
                "RAY_AUTH_MODE=token if it needs a token"
            ) from error
    return ray


def nodes_with(ray: Any, device: str) -> list[dict[str, Any]]:
    """Return the living nodes with such a device, as described by `ray.nodes()`."""
    resource = "GPU" if device == "cuda" else "CPU"
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get(resource, 0) >= 1]


def devices_of(ray: Any, device: str) -> int:
    """Return the number of parallel studies: one per GPU, or one per node, whose processor is one device."""
    nodes = nodes_with(ray, device)
    return sum(int(node["Resources"]["GPU"]) for node in nodes) if device == "cuda" else len(nodes)
