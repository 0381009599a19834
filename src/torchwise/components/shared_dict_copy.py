"""A module's twin: an object of the original class that shares the module's `__dict__`, and so its attributes."""

from __future__ import annotations

import torch


def copy_with_shared_dict(module: torch.nn.Module, cls: type[torch.nn.Module] | None = None) -> torch.nn.Module:
    """Return an object that shares every attribute with `module`, of class `cls` or by default of the module's own."""
    cls = cls or type(module)
    twin: torch.nn.Module = object.__new__(cls)
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin
