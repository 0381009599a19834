"""Import Ray on first use, and connect to a cluster."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from torchwise.errors import InputError, UnsupportedError


def ray_library() -> Any:
    """Import Ray.

    Raises:
        UnsupportedError: Ray is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"a cluster needs {error.name}, which is not installed: pip install 'torchwise[ray]'"
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
                f"address {address!r} needs Ray's client ({error}): pip install 'ray[client]'"
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
