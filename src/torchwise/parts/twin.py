"""A second object for a module: of the plain class, with the same attributes, because both share one `__dict__`."""

from __future__ import annotations

import torch


def twin_of(module: torch.nn.Module, cls: type[torch.nn.Module] | None = None) -> torch.nn.Module:
    """Return an object of class `cls`, the module's own by default, that shares every attribute with `module`."""
    cls = cls or type(module)
    twin: torch.nn.Module = object.__new__(cls)
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin
