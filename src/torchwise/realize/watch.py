"""What a module looks like, compared on every call: what was captured or copied holds for what it was then.

Walking a module takes microseconds per submodule, so the places to look at are listed once, and only they are read
(a third of a microsecond per submodule, a tenth per tensor). Not noticed, because it leaves no trace there: what is
inside a plain list or dict attribute, a whole `_parameters` or `_buffers` dict put in another's place, global
variables, and tensors that a function closes over.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

Fingerprint = tuple[list[int], list[Any], list[int], list[int]]
Slot = tuple[dict[str, Any], str]

_STANDARD = frozenset(torch.nn.Module().__dict__) - {"training"}
"""What every module has, and what is looked at otherwise or does not bear on its answers."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look; all of it is kept alive, so that no identity is given to something else meanwhile.

    Attributes:
        holders: the attributes of each module, and the dicts in which its children, parameters, buffers and hooks hang.
        attributes: the attributes of each module, with what reads the plain ones, its training mode among them.
        objects: where each submodule and each dict of them hangs, and each None in a parameter's or buffer's place,
            such as the bias of a layer without one.
        tensors: where each parameter, buffer and plain tensor hangs.
        kept: aliases of these tensors, so that a graph never reads memory which was given back.
    """

    holders: list[Sized]
    attributes: list[tuple[Callable[[dict[str, Any]], Any], dict[str, Any]]]
    objects: list[Slot]
    tensors: list[Slot]
    kept: list[torch.Tensor]


def places_of(module: torch.nn.Module | None) -> Places:
    """List the places of a module as it is now; none for a plain function."""
    modules = list(module.modules()) if module is not None else []
    plain = [(vars(child), [name for name in vars(child) if name not in _STANDARD]) for child in modules]
    registered = [state for child in modules for state in (child._parameters, child._buffers)]
    slots = [(state, name) for state in registered for name in state]
    slots += [(state, name) for state, names in plain for name in names if isinstance(state[name], torch.Tensor)]
    tensors = [(state, name) for state, name in slots if state[name] is not None]
    children = [(vars(child), "_modules") for child in modules]  # deleting from a Sequential puts another in its place
    children += [(child._modules, name) for child in modules for name in child._modules]
    hooks = [hooks for child in modules for hooks in (child._forward_hooks, child._forward_pre_hooks)]
    return Places(
        [*(state for state, _ in plain), *(child._modules for child in modules), *registered, *hooks],
        [(itemgetter(*_untensored(state, names)), state) for state, names in plain],
        [*children, *((state, name) for state, name in slots if state[name] is None)],
        tensors,
        [tensor.detach() for state, name in slots if (tensor := state[name]) is not None],
    )


def _untensored(state: dict[str, Any], names: list[str]) -> list[str]:
    # Tensors are known by where their memory lies; `==` between them would be computed on the GPU.
    return [name for name in names if not isinstance(state[name], torch.Tensor)]


def fingerprint(places: Places) -> Fingerprint | None:
    """Return what hangs in `places` now, to compare; None where something is gone.

    That is: how much is in each dict, training mode and plain attributes of each module, which submodules, and where
    the memory of each tensor lies. Values of tensors are not read, so writes in place do not show.
    """
    try:
        return (
            [*map(len, places.holders)],
            [read(state) for read, state in places.attributes],
            [*map(id, [holder[name] for holder, name in places.objects])],
            [holder[name].data_ptr() for holder, name in places.tensors],
        )
    except (KeyError, AttributeError):  # removed, or set to None
        return None


class ModuleWatch:
    """Tells whether a module changed since the last look in a way that its weights' values do not account for."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._module = module
        self.look()

    def look(self) -> None:
        """Take what the module is now as what it should be."""
        self._places = places_of(self._module)
        self._seen = fingerprint(self._places)

    def changed(self) -> bool:
        """Whether anything moved, came, went or switched mode."""
        try:
            return fingerprint(self._places) != self._seen
        except Exception:  # attributes may be anything, and what their comparison says is then no truth value
            return True

    def restructured(self) -> bool:
        """Whether more changed than where the memory of tensors lies."""
        try:
            now = fingerprint(places_of(self._module))
            return (
                now is None or self._seen is None or now[:-1] != self._seen[:-1] or len(now[-1]) != len(self._seen[-1])
            )
        except Exception:  # as above
            return True

    def versions(self) -> list[int | None]:
        """Count the writes in place to each tensor of the last look; None for one of inference mode, without a count.

        `load_state_dict` and optimisers are seen so. A write through `tensor.data` is invisible to PyTorch's own
        counter, and so to this.
        """
        return [None if tensor.is_inference() else tensor._version for tensor in self._places.kept]
