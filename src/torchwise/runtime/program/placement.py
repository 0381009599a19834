"""Put a decided plan in the place of a recorded module or function, and take it away again."""

from __future__ import annotations

from typing import Any

import torch

from torchwise.records import Decision
from torchwise.runtime.components.component import Component
from torchwise.runtime.components.config import CompileConfig
from torchwise.runtime.components.program import copy_with_shared_dict, place, restore, wrap_in_autocast
from torchwise.runtime.program.recorder import original_of


def config_of(autocast: torch.dtype | None, store: str | None = None) -> CompileConfig:
    """Return the settings of a component that runs by a decision of the store."""
    name = None if autocast is None else str(autocast).removeprefix("torch.")
    return CompileConfig.of("production", minimum_speedup=1.0, autocast=name, store=store, progress=False)


def workload_of(thing: Any, config: CompileConfig) -> Any:
    """Return what is tuned for a module or a function: its form before `torch.compile`, in the config's autocast."""
    original = original_of(thing)
    if original is thing and isinstance(thing, torch.nn.Module):
        original = copy_with_shared_dict(thing)  # whose class stays when `place` changes that of the module
    return wrap_in_autocast(original, config)


def place_decision(thing: Any, name: str, decision: Decision, config: CompileConfig) -> Component | None:
    """Have the plan of a decision answer calls of a module or a recorded function, if it says more than eager.

    Raises:
        InputError: the class of the module cannot be changed.
    """
    if decision.plan.is_eager:
        return None
    original = original_of(thing)
    if original is thing and isinstance(thing, torch.nn.Module):
        original = copy_with_shared_dict(thing)
    component = Component(name, original, config, find=lambda *_: decision)
    component.seek()
    if isinstance(thing, torch.nn.Module):
        place(thing, component)
    else:
        thing.placed = component
    return component


def take_away(thing: Any, component: Component) -> None:
    """Undo `place_decision`: the module has its own class again, and the plan's memory is freed."""
    if isinstance(thing, torch.nn.Module):
        restore(thing)
    else:
        thing.placed = None
    component.close()
