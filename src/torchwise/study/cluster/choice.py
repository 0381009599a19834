"""Choose where trials run, from command-line options."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torchwise import environment
from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.plan.plug_ins import GROUP, VARIABLE, list_named
from torchwise.records.listener import Listener
from torchwise.study.cluster.launcher import RayLauncher, connect, devices_of
from torchwise.study.cluster.manifest import Task
from torchwise.study.cluster.sweep import Slot
from torchwise.trial import Launcher, ProcessLauncher

LAUNCHERS = ("process", "ray")


def check(launcher: str, address: str | None) -> None:
    """Refuse options that name no launcher, and plug-ins that it would not know."""
    if launcher not in LAUNCHERS:
        raise InputError(f"launcher is {launcher!r}, but must be one of {', '.join(LAUNCHERS)}")
    if address and launcher != "ray":
        raise InputError(f"address is {address!r}, but only --launcher ray takes an address")
    if launcher == "ray" and list_named():
        raise InputError(
            f"{VARIABLE} is {os.environ[VARIABLE]!r}, but names files of this machine, which --launcher ray does not "
            f"send to the nodes: install a package there with an entry point of the group {GROUP}"
        )


def default_device(launcher: str, address: str | None) -> str:
    """Return "cuda" if there is a GPU on this machine or in the cluster, or else "cpu"."""
    if launcher == "ray":
        return "cuda" if devices_of(connect(address), "cuda") else "cpu"
    return environment.default_device()


@contextlib.contextmanager
def opened(
    launcher: str, device: str, address: str | None, listener: Listener, wait_s: float = math.inf
) -> Iterator[tuple[Launcher, Environment | None]]:
    """Yield a launcher for a study on `device`, and the environment of its device, or None for this machine.

    `wait_s` are the seconds to wait while all devices of a cluster are in use.
    """
    if launcher != "ray":
        yield ProcessLauncher(preloads=True), None
        return
    with RayLauncher(device, address, listener=listener, wait_s=wait_s) as ray_launcher:
        yield ray_launcher, ray_launcher.environment


def slots(launcher: str, address: str | None, parallel: int | None) -> list[Slot]:
    """Return the slots of a sweep: every GPU and every node of a cluster, or of this machine.

    Args:
        parallel: maximum number of slots, or None for all.
    """
    if parallel is not None and parallel < 1:
        raise InputError(f"parallel is {parallel}, but must be at least 1")
    if launcher == "ray":
        return _cluster_slots(address)[:parallel]
    found = _local_slots()[:parallel]
    # Studies that run at once share the cores, so none has cores of its own for several workers.
    return [replace(slot, options=(*slot.options, "--workers=1")) for slot in found] if len(found) > 1 else found


def check_fit(tasks: Iterable[Task], slots: Iterable[Slot]) -> None:
    """Refuse tasks for a device that no slot has."""
    available = frozenset().union(*(slot.devices for slot in slots))
    if missing := next((task for task in tasks if task.device not in available), None):
        raise InputError(
            f"{missing.target} needs the device {missing.device!r}, but only {', '.join(available)} is available"
        )


def _cluster_slots(address: str | None) -> list[Slot]:
    ray = connect(address)
    # Without an address, this process may have started a cluster, which the studies' processes must join.
    options = ("--launcher=ray", f"--address={address or ray.get_runtime_context().gcs_address}")
    gpus, nodes = devices_of(ray, "cuda"), devices_of(ray, "cpu")
    # Ray assigns the devices. A slot is a study that may have to wait for a device.
    both = [Slot(frozenset({"cuda", "cpu"}), options)] * min(gpus, nodes)
    rest = Slot(frozenset({"cuda"} if gpus > nodes else {"cpu"}), options)
    return [*both, *[rest] * abs(gpus - nodes)]


def _local_slots() -> list[Slot]:
    """Return a slot for each GPU. Only the first also runs studies on the CPU, as these disturb each other."""
    gpus = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in _visible_gpus()] if environment.torch_cuda_version() else []
    first, *others = gpus or [{}]
    return [
        Slot(frozenset({"cpu", "cuda"}), variables=first),
        *(Slot(frozenset({"cuda"}), variables=v) for v in others),
    ]


def _visible_gpus() -> list[str]:
    """Return the names of GPUs for CUDA_VISIBLE_DEVICES: those that the user named there, or else all."""
    found = [row[0] for row in environment.query_gpu("uuid")]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [name.strip() for name in named.split(",")] if found and named else found
