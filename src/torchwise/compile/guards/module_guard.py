"""Compare the state of a module on every call, as captured graphs and copies are valid only for one state.

Traversing a module on every call would take longer than many calls. So the places to compare are listed once, and only
they are read. Some changes go unnoticed: changes inside a plain list or dict attribute, a replaced `_parameters` or
`_buffers` dict, global variables, and tensors that a function closes over.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Iterator, Sized
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchwise.compile.guards.fast_module_guard import STANDARD, Reads, make_quick_check, names_read
from torchwise.compile.guards.varying_values import VaryingKind, VaryingValue, value_varied
from torchwise.compile.recompiles import Pace
from torchwise.compile.signature import is_equal, is_strided

Fingerprint = tuple[list[int], list[object], list[int], list[int], list[tuple[int, ...]], list[bool]]
Slot = tuple[dict[str, Any], str]
_MISSING = object()


@dataclass(frozen=True, slots=True)
class WatchedPlaces:
    """The places to compare. Their objects are kept alive, so that no other object gets one of their identities.

    Attributes:
        modules: the module and its submodules, whose classes may be replaced.
        holders: the attributes of each module, and the dicts of its children, parameters, buffers and hooks.
        attributes: the place of each plain attribute of each module, including its training mode.
        values: the values in those places.
        objects: the place of each submodule and each dict of them, and of each None instead of a parameter or buffer,
            such as the bias of a layer without one.
        tensors: the place of each parameter, buffer and plain tensor.
        complexes: the complex tensors among them, which may be conjugated lazily.
        kept: aliases of the tensors, so that a graph never reads freed memory.
    """

    modules: list[torch.nn.Module]
    holders: list[Sized]
    attributes: list[Slot]
    values: list[Any]
    objects: list[Slot]
    tensors: list[Slot]
    complexes: list[Slot]
    kept: list[torch.Tensor]


def places_of(module: torch.nn.Module | None, reads: Reads | None = None) -> WatchedPlaces:
    """List the present places of a module, or none for a plain function.

    Args:
        module: the module, with its submodules.
        reads: the attributes to compare, by default all.
    """
    modules = list(module.modules()) if module is not None else []
    names = names_read(module, modules, reads) if module is not None else []
    states = [(vars(child), read) for child, read in zip(modules, names, strict=True)]
    plain = [(state, name) for state, read in states for name in (state if read is None else read)]
    plain = [(state, name) for state, name in plain if name not in STANDARD]
    registered = [state for child in modules for state in (child._parameters, child._buffers)]
    # Modules of TorchScript have dicts of another kind, which cannot be iterated, and not always as an attribute.
    slots: list[Slot] = [(state, name) for state in registered for name in state.keys()]  # noqa: SIM118
    slots += [(state, name) for state, name in plain if isinstance(state.get(name), torch.Tensor)]
    tensors = [(state, name) for state, name in slots if state[name] is not None]
    attributes = [(state, name) for state, name in plain if not isinstance(state.get(name), torch.Tensor)]
    own = [vars(child) for child in modules if "_modules" in vars(child)]
    children = [(state, "_modules") for state in own]  # deleting from a Sequential puts another dict in its place
    children += [(child._modules, name) for child in modules for name in child._modules.keys()]  # noqa: SIM118
    hooks = [hooks for child in modules for hooks in (child._forward_hooks, child._forward_pre_hooks)]
    whole = [state for state, read in states if read is None]
    return WatchedPlaces(
        modules,
        [*whole, *(child._modules for child in modules), *registered, *hooks],
        attributes,
        [state.get(name, _MISSING) for state, name in attributes],
        [*children, *((state, name) for state, name in slots if state[name] is None)],
        tensors,
        [(state, name) for state, name in tensors if state[name].is_complex()],
        [t.detach() if is_strided(t) else t for state, name in slots if (t := state[name]) is not None],
    )


def fingerprint(places: WatchedPlaces) -> Fingerprint | None:
    """Return the present contents of `places`, to compare, or None if something was removed.

    These are the size of each dict, the submodules and their classes, and the address and layout of each tensor's
    memory. Values of tensors are not read, so writes in place do not show. Plain attributes are compared separately
    (`rebound`).
    """
    try:
        tensors = [holder[name] for holder, name in places.tensors]
        return (
            [*map(len, places.holders)],
            [*map(id, [holder[name] for holder, name in places.objects]), *map(type, places.modules)],
            [*map(_address, tensors)],
            [tensor.numel() for tensor in tensors],
            [tensor.stride() if is_strided(tensor) else () for tensor in tensors],
            [holder[name].is_conj() for holder, name in places.complexes],
        )
    except (KeyError, AttributeError):  # removed, or set to None
        return None


def rebound(places: WatchedPlaces) -> list[Slot]:
    """List the plain attributes that changed. An equal number or text of a type is the same."""
    now = [state.get(name, _MISSING) for state, name in places.attributes]
    if all(map(is_, now, places.values)):
        return []
    trios = zip(places.attributes, now, places.values, strict=True)
    return [slot for slot, a, b in trios if a is not b and not is_equal(a, b)]


class ModuleGuard:
    """Detects whether a module changed since the last snapshot, other than by the values of its weights.

    Args:
        module: the module, with its submodules. None never changes.
        reads: returns the plain attributes to compare, for each snapshot. By default all.
    """

    def __init__(self, module: torch.nn.Module | None, reads: Callable[[], Reads | None] = lambda: None) -> None:
        self._module = module
        self._reads = reads
        self._pace = Pace()
        self._steps: int | None = None  # of optimizers with its weights, counted from the first `versions` on
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Take the module's present state as the reference."""
        reads = self._reads()
        self._places = places_of(self._module, reads)
        self._fingerprint = fingerprint(self._places)
        self._addresses = frozenset(self._fingerprint[2]) if self._fingerprint is not None else frozenset()
        self._structure = _structure_of(self._module)
        self._registered = _locate_tensors(self._module)
        self._last_reads = reads
        self._unchanged = make_quick_check(self._module, reads) if self._module is not None else lambda: True

    def has_changed(self) -> bool:
        """Whether anything was moved, added, removed, rebound or switched to another mode."""
        if self._unchanged():
            return False
        if fingerprint(self._places) != self._fingerprint or rebound(self._places):
            return True
        if self._module is not None and self._pace.is_due():  # from now on the quick check is enough again
            with self._pace:
                self._unchanged = make_quick_check(self._module, self._last_reads)
        return False

    def has_moved(self) -> bool:
        """Whether only the addresses of tensors changed, as when weights were assigned."""
        now, before = fingerprint(self._places), self._fingerprint
        if now is None or before is None or rebound(self._places) or self.has_new_structure():
            return False
        return now[:2] == before[:2] and now[3:] == before[3:]

    def has_new_structure(self) -> bool:
        """Whether more changed than plain attributes, and the address and layout of tensors' memory."""
        return _structure_of(self._module) != self._structure

    def has_new_tensors(self, *, buffers: bool) -> bool:
        """Whether a parameter (with `buffers` also a buffer) was replaced or moved since the last snapshot."""
        now = _locate_tensors(self._module)
        return now != self._registered if buffers else now[0] != self._registered[0]

    def difference(self) -> VaryingValue:
        """Return the first change, in words."""
        named = [] if self._module is None else list(self._module.named_modules())
        holders = {id(values): path for path, part in named for values in (vars(part), part._parameters, part._buffers)}

        def place(holder: dict[str, Any], name: str) -> str:
            return f"`{'.'.join(filter(None, (holders.get(id(holder)), name)))}` on the model"

        for holder, name in rebound(self._places):
            return value_varied(place(holder, name), holder.get(name))
        addresses = self._fingerprint[2] if self._fingerprint else ()
        for (holder, name), address in zip(self._places.tensors, addresses, strict=False):
            if not isinstance(now := holder.get(name), torch.Tensor) or _address(now) != address:
                return VaryingValue(name, place(holder, name), VaryingKind.WEIGHT)
        return VaryingValue("", self._find_changed_module(named), VaryingKind.STATE)

    def _find_changed_module(self, named: list[tuple[str, torch.nn.Module]]) -> str:
        """Name the first module with another class, mode or list of submodules."""
        now = _structure_of(self._module)
        for (path, _), before, after in zip(named, self._structure, now, strict=False):
            if before != after and isinstance(before, tuple) and isinstance(after, tuple):
                where = f"`{path}` on the model" if path else "the model"
                if before[:2] != after[:2]:
                    return f"the module {where}"
                return f"the mode of {where}" if before[2] != after[2] else f"the list of submodules of {where}"
        return "the structure of the model (its submodules, hooks or attributes)"

    def versions(self) -> list[int | None]:
        """Return the version counter of each tensor of the last snapshot, with None for tensors of inference mode.

        It shows writes of `load_state_dict` and optimizers. PyTorch does not count writes of a fused optimizer, nor of
        libraries with kernels of their own. So the steps of each optimizer with one of the tensors are counted here,
        and come last. A write through `tensor.data` shows in neither.
        """
        if self._steps is None:
            self._count_steps()
        return [*(None if tensor.is_inference() else tensor._version for tensor in self._places.kept), self._steps]

    def _count_steps(self) -> None:
        self._steps = 0
        _COUNTING.add(self)
        _hear_of_steps()

    def count_optimizer_step(self, trained: Collection[int]) -> None:
        """Count a step of an optimizer that holds tensors at these addresses."""
        if self._steps is not None:
            self._steps += not self._addresses.isdisjoint(trained)


_COUNTING: weakref.WeakSet[ModuleGuard] = weakref.WeakSet()
"""Watches that count the steps of optimizers."""


@functools.cache
def _hear_of_steps() -> None:
    """Register one hook on the steps of all optimizers, which is never removed.

    Removing it with its guard could happen while PyTorch iterates over the hooks, as Python collects at any time.
    """

    def notify_watches(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if watches := list(_COUNTING):
            trained = {_address(tensor) for group in optimizer.param_groups for tensor in group["params"]}
            for watch in watches:
                watch.count_optimizer_step(trained)

    register_optimizer_step_post_hook(notify_watches)


def _structure_of(module: torch.nn.Module | None) -> list[object]:
    """Describe the structure of a module, to compare.

    It is its parts by identity, class and mode, their hooks, the existing weights and buffers, and which of these are
    identical.
    """
    parts = list(module.modules()) if module is not None else []
    # A frozen module of TorchScript has no mode.
    found: list[object] = [(id(p), type(p), getattr(p, "training", False), *p._modules.keys()) for p in parts]
    found += [tuple(map(id, hooks)) for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)]
    first: dict[int, int] = {}
    for place, (part, name, tensor) in enumerate(_iter_tensors(parts)):
        tied = None if tensor is None else first.setdefault(id(tensor), place)
        found.append((id(part), name, tied))
    return found


def _locate_tensors(module: torch.nn.Module | None) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the parameters and the buffers, each by its identity and address."""
    tensors = ([], []) if module is None else ([*module.parameters()], [*module.buffers()])
    parameters, buffers = ([(id(t), _address(t)) for t in several] for several in tensors)
    return parameters, buffers


def _iter_tensors(parts: list[torch.nn.Module]) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor | None]]:
    for part in parts:
        for state in (part._parameters, part._buffers):
            yield from ((part, name, tensor) for name, tensor in state.items())


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if is_strided(tensor) else id(tensor)
