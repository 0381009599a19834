"""Autocast for components: the config's autocast holds for tuning, verifying and timing, and for the original."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from torchwise.components.config import CompileConfig


def device_of(config: CompileConfig) -> str:
    """Return the device for components: "cuda" if there is a GPU, unless the config says otherwise."""
    return config.device or ("cuda" if torch.cuda.is_available() else "cpu")


def autocast_of(config: CompileConfig) -> AbstractContextManager[Any]:
    """Return the autocast context for a component, or a null context if the config has no autocast."""
    if config.autocast is None:
        return nullcontext()
    return torch.autocast(device_of(config), getattr(torch, config.autocast))


def wrap_in_autocast(original: Callable[..., Any], config: CompileConfig) -> Callable[..., Any]:
    """Wrap `original` in the config's autocast, to be tuned in its place, or return it unchanged without autocast.

    The wrapper enters the context itself, so compiled or captured code includes it.
    """
    if config.autocast is None:
        return original
    device, dtype = device_of(config), getattr(torch, config.autocast)
    if isinstance(original, torch.nn.Module):
        return _module_under(original, device, dtype)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype):
            return original(*args, **kwargs)

    del call.__wrapped__  # without the context, the function is another workload
    return call


def _module_under(original: torch.nn.Module, device: str, dtype: torch.dtype) -> torch.nn.Module:
    from torchwise.compile.forward_entry import calls_forward_alone
    from torchwise.components.shared_dict_copy import copy_with_shared_dict

    cls = type(original)
    name = "forward" if calls_forward_alone(original) else "__call__"

    def call_in_autocast(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch  # also in a worker

        with torch.autocast(device, dtype):
            return getattr(cls, name)(self, *args, **kwargs)

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, name: call_in_autocast}
    return copy_with_shared_dict(
        original, types.new_class(cls.__name__, (cls,), exec_body=lambda own: own.update(names))
    )
