"""The precision that a part runs under, made part of what is tuned: proven and timed as the original under it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torchwise.parts.config import CompileConfig

if TYPE_CHECKING:
    import torch


def device_of(config: CompileConfig) -> str:
    """Return where parts are meant to run: "cuda" where there is a GPU, unless the config says otherwise."""
    import torch

    return config.device or ("cuda" if torch.cuda.is_available() else "cpu")


def autocast_of(config: CompileConfig) -> AbstractContextManager[Any]:
    """Return the context that a part runs under; one that does nothing where the config has no autocast."""
    import torch

    if config.autocast is None:
        return nullcontext()
    return torch.autocast(device_of(config), getattr(torch, config.autocast))


def under_autocast(original: Callable[..., Any], config: CompileConfig) -> Callable[..., Any]:
    """Return `original` as it runs under the config's autocast, to be tuned in its place; itself where there is none.

    The context is entered inside: what is compiled or captured then includes it.
    """
    import torch

    if config.autocast is None:
        return original
    device, dtype = device_of(config), getattr(torch, config.autocast)
    if isinstance(original, torch.nn.Module):
        return _module_under(original, device, dtype)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype):
            return original(*args, **kwargs)

    del call.__wrapped__  # what is the same function without the context is another workload
    return call


def _module_under(original: torch.nn.Module, device: str, dtype: torch.dtype) -> torch.nn.Module:
    from torchwise.parts.twin import twin_of
    from torchwise.realize.entry import calls_forward_alone

    cls = type(original)
    name = "forward" if calls_forward_alone(original) else "__call__"

    def under(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch  # in a worker, too

        with torch.autocast(device, dtype):
            return getattr(cls, name)(self, *args, **kwargs)

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, name: under}
    return twin_of(original, types.new_class(cls.__name__, (cls,), exec_body=lambda own: own.update(names)))
