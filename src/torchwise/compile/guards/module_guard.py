"""Compare the state of a module on every call, as captured graphs and copies are valid only for one state.

Nearly every call needs only the quick check, most of it in C: by the counts of writes no dict of the module was written
to, and by Dynamo's tensor guards the tensors have the same memory and layout. Otherwise the entries that differ are
compared closely. If the guards of the code are known, only the attributes that the code reads count. Some changes go
unnoticed: changes inside a plain list or dict attribute, global variables, and tensors that a function closes over.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchwise._torch import native
from torchwise._torch.dispatch import list_modes
from torchwise._torch.dynamo import make_tensor_check
from torchwise.compile.guards.dict_contents import DictContents, watch
from torchwise.compile.guards.varying_values import Guard, VaryingKind, VaryingValue, value_varied
from torchwise.compile.recompiles import Pace
from torchwise.compile.signature import is_strided
from torchwise.errors import UnsupportedError
from torchwise.workload.layouts import count_writes

Reads = Mapping[tuple[str, ...], Collection[str] | None]
"""By the path of a submodule, the attributes on which code depends (also on their absence), or None for all."""

STANDARD = frozenset(torch.nn.Module().__dict__) - {"training"}
"""Attributes that every module has, and that are checked separately or do not affect its answers."""
REGISTERED = ("_modules", "_parameters", "_buffers")
_data_ptr = torch.Tensor.data_ptr

Memory = tuple[list[int], list[int], list[tuple[int, ...]], list[bool]]
"""The address, the size and the strides of each tensor, and whether each complex one is conjugated lazily."""


class ModuleState:
    """A snapshot of a module: classes, dicts and hooks of all submodules, and the memory of their tensors.

    Args:
        module: the module, or None for a plain function.
        reads: the attributes that count, by default all of them. If empty, the caller checks the attributes.

    Attributes:
        tensors: the parameters, buffers and plain tensors.
        aliases: aliases of them, so that a graph never reads freed memory.
    """

    def __init__(self, module: torch.nn.Module | None, reads: Reads | None = None) -> None:
        named = list(module.named_modules()) if module is not None else []
        self._modules = [part for _, part in named]
        self._kinds = [*map(type, self._modules)]
        self._hooks = [hooks for part in self._modules for hooks in (part._forward_hooks, part._forward_pre_hooks)]
        self._numbers = [*map(tuple, self._hooks)]  # each hook has a number of its own
        self._lengths = [*map(len, self._hooks)]
        self._hooked = [hooks for hooks in self._hooks if hooks]
        self._numbers_of_hooked = [*map(tuple, self._hooked)]
        registered = [
            DictContents(getattr(part, kind), owner=path, is_ordered=kind == "_modules")
            for path, part in named
            for kind in REGISTERED
        ]
        self._attributes: list[DictContents] = []
        if module is not None and (reads is None or reads):
            read = _list_names(module, self._modules, reads)
            pairs = zip(named, read, strict=True)
            self._attributes = [_make_attributes(path, vars(part), names) for (path, part), names in pairs]
        self._dicts = [*registered, *self._attributes]
        self._find_differences = watch(self._dicts)
        found = [(one, name, v) for one in self._dicts for name, v in one.items() if isinstance(v, torch.Tensor)]
        self._places = [(one, name) for one, name, _ in found]
        self.tensors = [tensor for _, _, tensor in found]
        self._complexes = [at for at, tensor in enumerate(self.tensors) if tensor.is_complex()]
        self._memory = self._locate(self.tensors)
        self.aliases = [t.detach() if is_strided(t) else t for t in self.tensors]

    @property
    def addresses(self) -> list[int]:
        """The addresses of the tensors."""
        return self._memory[0]

    def make_quick_check(self) -> Callable[[], bool]:
        """Return a check that the module is certainly unchanged. If it returns False, `has_changed` must decide.

        It also returns False after changes that affect no answer: another object with the same memory, another grad
        mode. And it does under transforms such as vmap, and under modes that see operators. Weights and submodules of
        TorchScript are stored elsewhere, so there it always does.
        """
        is_scripted = any(isinstance(part, torch.jit.ScriptModule) for part in self._modules)
        distinct = [*{id(tensor): tensor for tensor in self.tensors}.values()]  # weights may be tied
        guards = None if is_scripted else _make_tensor_guards(distinct)
        if guards is None:
            return lambda: False
        here, there = guards
        find_differences, modules, kinds = self._find_differences, self._modules, self._kinds
        hooks, lengths, tensors, addresses = self._hooks, self._lengths, self.tensors, self.addresses
        hooked, numbers = self._hooked, self._numbers_of_hooked

        def is_unchanged() -> bool:
            return (
                not find_differences()
                and [*map(len, hooks)] == lengths
                and [*map(tuple, hooked)] == numbers
                and [*map(_data_ptr, tensors)] == addresses
                and [*map(type, modules)] == kinds  # another class is not a write to a dict
                and (here(*distinct) or there(*distinct))
            )

        return self._watch(is_unchanged) or is_unchanged

    def _watch(self, closely: Callable[[], bool]) -> native.Watch | None:
        """Return the quick check in C++, which asks the one in Python about each difference, or None."""
        watch = native.make_watch(closely, is_boolean=True)
        dicts = tuple(one.contents for one in self._dicts)
        if watch is None or not all(isinstance(one, dict) for one in dicts):
            return None
        objects = tuple(zip(self._modules, self._kinds, strict=True))
        hooks = tuple(zip(self._hooks, self._numbers, strict=True))
        try:
            watch.reset(dicts, objects, hooks, tuple(self.tensors), None, list_modes())
        except (TypeError, UnsupportedError):  # hooks of an unusual kind
            return None
        return watch if closely() else None  # nothing changed since the snapshot

    def has_changed(self) -> bool:
        """Whether anything was moved, added, removed, replaced or switched to another mode."""
        return self._has_other_entries() or self._locate_now() != self._memory

    def has_moved(self) -> bool:
        """Whether at most the addresses of tensors changed."""
        return not self._has_other_entries() and self._locate_now()[1:] == self._memory[1:]

    def find_difference(self) -> VaryingValue | None:
        """Return the first attribute, or else the first tensor, that changed, or None."""
        for one, name in self._iter_changed():
            if one in self._attributes and name not in REGISTERED and not isinstance(one.get(name), torch.Tensor):
                return value_varied(_place(one.owner, name), one.contents.get(name))
        for (one, name), address in zip(self._places, self.addresses, strict=True):
            now = one.get_now(name)
            if not isinstance(now, torch.Tensor) or _address(now) != address:
                return VaryingValue(name, _place(one.owner, name), VaryingKind.WEIGHT)
        return None

    def _has_other_entries(self) -> bool:
        return (
            [*map(type, self._modules)] != self._kinds
            or [*map(len, self._hooks)] != self._lengths
            or [*map(tuple, self._hooked)] != self._numbers_of_hooked
            or any(True for _ in self._iter_changed())
        )

    def _iter_changed(self) -> Iterator[tuple[DictContents, str]]:
        """Yield the entries that changed, other than a tensor to another tensor."""
        for place, names in sorted(self._find_differences().items()):
            one = self._dicts[place]
            for name in names:
                if not (isinstance(one.get(name), torch.Tensor) and isinstance(one.get_now(name), torch.Tensor)):
                    yield one, name

    def _locate_now(self) -> Memory:
        return self._locate([one.contents[name] for one, name in self._places])

    def _locate(self, tensors: Sequence[torch.Tensor]) -> Memory:
        strides = [t.stride() if is_strided(t) else () for t in tensors]
        conjugated = [tensors[at].is_conj() for at in self._complexes]
        return [*map(_address, tensors)], [t.numel() for t in tensors], strides, conjugated


def make_quick_check(module: torch.nn.Module, reads: Reads | None = None) -> Callable[[], bool]:
    """Return a check that a module is certainly unchanged from now on (`ModuleState.make_quick_check`)."""
    return ModuleState(module, reads).make_quick_check()


def _place(owner: str, name: str) -> str:
    return f"`{'.'.join(filter(None, (owner, name)))}` on the model"


def _list_names(
    module: torch.nn.Module, children: list[torch.nn.Module], reads: Reads | None
) -> list[Collection[str] | None]:
    """Return the attributes of each submodule that are read."""
    if reads is None:
        return [None] * len(children)
    found: dict[int, set[str] | None] = {id(child): set() for child in children}
    for path, names in reads.items():
        child: Any = module
        for name in path:
            child = child._modules[name] if child is not None and name in child._modules else None
        known = found.get(id(child))
        if names is None:
            found[id(child)] = None
        elif known is not None:
            known |= set(names)
    return [found[id(child)] for child in children]


def _make_attributes(path: str, state: dict[str, Any], names: Collection[str] | None) -> DictContents:
    """Return the attributes of a module to compare: those named, or all that are not every module's.

    A deletion from a Sequential replaces the dict `_modules`.
    """
    if names is not None:
        return DictContents(state, {*REGISTERED, *names}, owner=path)
    return DictContents(state, owner=path, counts=lambda name, _: name in REGISTERED or name not in STANDARD)


def _make_tensor_guards(tensors: list[torch.Tensor]) -> tuple[Callable[..., bool], Callable[..., bool]] | None:
    """Return a check, in one step, that distinct tensors have the same memory and layout, or None if it is impossible.

    PyTorch's guards are valid only with inference mode as at their creation, so there are guards for on and off. They
    never hold for a tensor that is given twice.
    """
    if not tensors:
        return _always, _always
    if not all(type(t) in (torch.Tensor, torch.nn.Parameter) and is_strided(t) for t in tensors):
        return None
    try:
        here = make_tensor_check(tensors)
        with torch.inference_mode(not torch.is_inference_mode_enabled()), torch.no_grad():
            there = make_tensor_check(tensors)
    except UnsupportedError:
        return None
    return here, there


def _always() -> bool:
    return True


class ModuleGuard(Guard):
    """Detects whether a module changed since the last snapshot, other than by the values of its weights.

    Args:
        module: the module, with its submodules. None never changes.
        reads: returns the plain attributes to compare, for each snapshot. By default all.

    Attributes:
        is_unchanged: the quick check since the last snapshot (`ModuleState.make_quick_check`).
    """

    is_unchanged: Callable[[], bool]

    def __init__(self, module: torch.nn.Module | None, reads: Callable[[], Reads | None] = lambda: None) -> None:
        self._module = module
        self._reads = reads
        self._pace = Pace()
        self._steps: int | None = None  # of optimizers with its weights, counted from the first `versions` on
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Take the module's present state as the reference."""
        self._last_reads = self._reads()
        self._state = ModuleState(self._module, self._last_reads)
        tensors = zip(self._state.tensors, self._state.aliases, strict=True)
        self._weights = [alias for tensor, alias in tensors if isinstance(tensor, torch.nn.Parameter)]
        self._addresses = frozenset(self._state.addresses)
        self._structure = _structure_of(self._module)
        self._parameters = _locate_parameters(self._module)
        self.is_unchanged = self._state.make_quick_check() if self._module is not None else lambda: True

    def has_changed(self) -> bool:
        """Whether anything was moved, added, removed, replaced or switched to another mode."""
        if self.is_unchanged():
            return False
        if self._state.has_changed():
            return True
        if self._module is not None and self._pace.is_due():  # from now on the quick check is enough again
            with self._pace:
                self.is_unchanged = make_quick_check(self._module, self._last_reads)
        return False

    def has_moved(self) -> bool:
        """Whether at most the addresses of tensors changed, as when weights were assigned."""
        return self._state.has_moved() and not self.has_new_structure()

    def has_new_structure(self) -> bool:
        """Whether more changed than plain attributes, and the address and layout of tensors' memory."""
        return _structure_of(self._module) != self._structure

    def has_new_parameters(self) -> bool:
        """Whether a parameter was replaced or moved since the last snapshot."""
        return _locate_parameters(self._module) != self._parameters

    def difference(self) -> VaryingValue:
        """Return the first change, in words."""
        return self._state.find_difference() or VaryingValue("", self._find_changed_module(), VaryingKind.STATE)

    def _find_changed_module(self) -> str:
        """Name the first module with another class, mode or list of submodules."""
        paths = [path for path, _ in self._module.named_modules()] if self._module is not None else []
        for path, before, after in zip(paths, self._structure, _structure_of(self._module), strict=False):
            if before != after and isinstance(before, tuple) and isinstance(after, tuple):
                where = f"`{path}` on the model" if path else "the model"
                if before[:2] != after[:2]:
                    return f"the module {where}"
                return f"the mode of {where}" if before[2] != after[2] else f"the list of submodules of {where}"
        return "the structure of the model (its submodules, hooks or attributes)"

    def versions(self, *, of_parameters: bool = False) -> list[int | None]:
        """Return the version counter of each tensor of the last snapshot, or of its parameters alone.

        It is None for tensors of inference mode.

        It shows writes of `load_state_dict` and optimizers. PyTorch does not count writes of a fused optimizer, nor of
        libraries with kernels of their own. So the steps of each optimizer with one of the tensors are counted here,
        and come last. A write through `tensor.data` shows in neither.
        """
        if self._steps is None:
            self._count_steps()
        return [*map(count_writes, self._weights if of_parameters else self._state.aliases), self._steps]

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
    dicts = [(id(part), tensors) for part in parts for tensors in (part._parameters, part._buffers)]
    slots = [(owner, name, tensor) for owner, tensors in dicts for name, tensor in tensors.items()]
    for place, (owner, name, tensor) in enumerate(slots):
        found.append((owner, name, None if tensor is None else first.setdefault(id(tensor), place)))
    return found


def _locate_parameters(module: torch.nn.Module | None) -> list[tuple[int, int]]:
    """Return the parameters, each by its identity and address."""
    return [] if module is None else [(id(parameter), _address(parameter)) for parameter in module.parameters()]


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if is_strided(tensor) else id(tensor)
