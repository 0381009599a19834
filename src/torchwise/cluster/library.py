"""Ray, imported on first use, and the cluster that it connects to."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from torchwise.errors import InputError, UnsupportedError


def ray_library() -> Any:
    """Import Ray.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"a cluster needs {error.name}, which is not installed: pip install 'torchwise[ray]'"
        ) from error


def connect(address: str | None) -> Any:
    """Connect this process to a cluster, where it is not yet, and return Ray.

    Args:
        address: "HOST:PORT", "ray://HOST:PORT" or "auto"; None for RAY_ADDRESS, else the cluster that runs on this
            machine, else one of this machine alone, which ends with this process.

    Raises:
        UnsupportedError: Ray is not installed.
        InputError: no cluster answers there.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that starts here reports to nobody
    ray = ray_library()
    if not ray.is_initialized():
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except ImportError as error:
            raise UnsupportedError(
                f"address {address!r} needs Ray's client ({error}): pip install 'ray[client]'"
            ) from error
        except (ConnectionError, RuntimeError, ValueError) as error:  # Ray has no error of its own for this
            where = address or os.environ.get("RAY_ADDRESS", "this machine")
            raise InputError(
                f"no Ray cluster answers at {where} ({error}); start one with `ray start --head`, and set "
                "RAY_AUTH_MODE=token for one that asks for a token"
            ) from error
    return ray


def nodes_with(ray: Any, device: str) -> list[dict[str, Any]]:
    """Return the living nodes that have such a device, as `ray.nodes()` describes them."""
    resource = "GPU" if device == "cuda" else "CPU"
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get(resource, 0) >= 1]


def devices_of(ray: Any, device: str) -> int:
    """Return how many studies can run at once: one a GPU, or one a node, whose processor is one device."""
    nodes = nodes_with(ray, device)
    return sum(int(node["Resources"]["GPU"]) for node in nodes) if device == "cuda" else len(nodes)
