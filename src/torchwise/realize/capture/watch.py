"""What a module looks like, compared on every call: a CUDA graph replays what the module was when it was captured.

Walking a module takes microseconds per submodule, so the places to look at are listed once, and only they are read
(a third of a microsecond per submodule, a tenth per tensor). Not noticed, because it leaves no trace there: plain
Python attributes, hooks, a replaced `forward`, a whole `_parameters` or `_buffers` dict put in another's place, and
tensors that a function closes over.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_TRAINING, _MODULES = attrgetter("training"), attrgetter("_modules")

Fingerprint = tuple[list[bool], list[int], list[int], list[int], list[int]]
Slot = tuple[dict[str, Any], str]


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look; all of it is kept alive, so that no identity is given to something else meanwhile.

    Attributes:
        modules: the module and all its submodules.
        holders: the dicts in which their children, parameters and buffers hang.
        objects: where each submodule hangs, and each None in a submodule's, parameter's or buffer's place, such as the
            bias of a layer without one.
        tensors: where each parameter and buffer hangs.
    """

    modules: list[torch.nn.Module]
    holders: list[Sized]
    objects: list[Slot]
    tensors: list[Slot]


def places_of(module: torch.nn.Module | None) -> Places:
    """List the places of a module as it is now; none for a plain function."""
    modules = list(module.modules()) if module is not None else []
    states = [state for child in modules for state in (child._parameters, child._buffers)]
    slots = [(state, name, tensor is None) for state in states for name, tensor in state.items()]
    children = [(child._modules, name) for child in modules for name in child._modules]
    return Places(
        modules,
        [*(child._modules for child in modules), *states],
        [*children, *((state, name) for state, name, vacant in slots if vacant)],
        [(state, name) for state, name, vacant in slots if not vacant],
    )


def fingerprint(places: Places) -> Fingerprint | None:
    """Return what hangs in `places` now, to compare; None where something is gone.

    That is: training mode and dict of children of each module, how much is in each dict, which submodules, and where
    the memory of each parameter and buffer lies. Values are not read, so writes in place do not show.
    """
    try:
        return (
            [*map(_TRAINING, places.modules)],
            [*map(id, map(_MODULES, places.modules))],
            [*map(len, places.holders)],
            [*map(id, [holder[name] for holder, name in places.objects])],
            [holder[name].data_ptr() for holder, name in places.tensors],
        )
    except (KeyError, AttributeError):  # removed, or set to None
        return None


class ModuleWatch:
    """Tells whether a module changed in a way that a captured graph does not follow."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._module = module
        self.look()

    def look(self) -> None:
        """Take what the module is now as what it should be."""
        self._places = places_of(self._module)
        self._seen = fingerprint(self._places)

    def changed(self) -> bool:
        """Whether anything moved, came, went or switched mode since the last look."""
        return fingerprint(self._places) != self._seen
