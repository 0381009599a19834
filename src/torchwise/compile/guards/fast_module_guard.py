"""A fast check that a module is certainly unchanged.

It runs on every call of a captured graph and of compiled code, nearly all of it in C. It checks that no dict of a
module was written to, by the dict versions that Python keeps and Dynamo reads. It checks that the tensors have the same
memory and layout, by Dynamo's tensor guards. If a dict was written to, it compares every submodule, parameter, buffer
and plain attribute there by identity. It also checks that nothing was added. If the guards of the code are known, it
compares only the attributes that the code reads. It checks the classes of the submodules on every call.

Also here: read Dynamo's guards, and decide whether Torchwise's own checks already cover them.
"""

from __future__ import annotations

import re
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch

from torchwise._torch.guards import DICT_VERSION
from torchwise.compile.signature import guards_of, is_equal, is_plain, is_strided
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

Reads = Mapping[tuple[str, ...], Collection[str] | None]
"""By the path of a submodule, the attributes on which code depends (also on their absence), or None for all."""

_address = torch.Tensor.data_ptr
_flat = chain.from_iterable
_MISSING = object()

STANDARD = frozenset(torch.nn.Module().__dict__) - {"training"}
"""Attributes that every module has, and that are checked separately or do not affect its answers."""
REGISTERED = ("_modules", "_parameters", "_buffers")


class DictContents:
    """The contents of a dict.

    Args:
        contents: the dict.
        names: the keys to compare, present or not. By default all of them, and nothing may be added.
        ignored: the keys that are left out in that case.
    """

    __slots__ = ("_all", "_ignored", "_names", "_values", "contents")

    def __init__(
        self, contents: dict[str, Any], names: Iterable[str] | None = None, ignored: Collection[str] = ()
    ) -> None:
        self.contents = contents
        self._ignored = ignored if names is None else None
        self._names = list(names or ())
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Take the present contents as the reference."""
        self._all = list(self.contents)  # in their order, in which a Sequential calls its modules
        if self._ignored is not None:
            self._names = [name for name in self._all if name not in self._ignored]
        self._values = self._now()

    def is_same(self) -> bool:
        """Whether the same objects are there, or equal numbers and strings."""
        now = self._now()
        if not all(map(is_, now, self._values)):
            if not all(a is b or is_equal(a, b) for a, b in zip(now, self._values, strict=True)):
                return False
            self._values = now
        return self._ignored is None or [*self.contents] == self._all

    def _now(self) -> list[Any]:
        get = self.contents.get
        return [get(name, _MISSING) for name in self._names]

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors among the reference contents."""
        return [value for value in self._values if isinstance(value, torch.Tensor)]


def make_quick_check(module: torch.nn.Module, reads: Reads | None = None) -> Callable[[], bool]:
    """Return a check that a module is certainly unchanged. If it returns False, a full check must decide.

    It also returns False after changes that affect no answer: another object with the same memory, another grad mode.

    Args:
        module: the module, with all its submodules.
        reads: the attributes on which code depends, by default all of them. If empty, the caller checks the contents of
            the modules.
    """
    children = list(module.modules())
    if any(isinstance(child, torch.jit.ScriptModule) for child in children):
        return lambda: False  # their weights and submodules are stored elsewhere
    kinds = [*map(type, children)]
    states = [*map(vars, children)]
    dicts = [DictContents(state[kind]) for state in states for kind in REGISTERED]
    hooks = [state[kind] for state in states for kind in ("_forward_hooks", "_forward_pre_hooks")]
    if reads is None or reads:
        dicts += [_attributes(*each) for each in zip(states, names_read(module, children, reads), strict=True)]
    tensors = [*_flat(one.tensors() for one in dicts)]
    guards = _guards(tensors)
    if guards is None:
        return lambda: False
    here, there = guards
    addresses = [*map(_address, tensors)]
    unwritten = unwritten_since(dicts, hooks)
    return lambda: (
        unwritten()
        and [*map(_address, tensors)] == addresses
        and [*map(type, children)] == kinds  # another class is not a write to a dict
        and (here(*tensors) or there(*tensors))
    )


def names_read(
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


def _attributes(state: dict[str, Any], names: Collection[str] | None) -> DictContents:
    """Return the attributes of a module to compare.

    A deletion from a Sequential replaces the dict `_modules`.
    """
    return (
        DictContents(state, ignored=STANDARD - {*REGISTERED})
        if names is None
        else DictContents(state, {*REGISTERED, *names})
    )


def unwritten_since(dicts: Sequence[DictContents], hooks: Sequence[Any]) -> Callable[[], bool]:
    """Return a check that dicts are unchanged: by their versions, or else by their contents.

    An attribute that was set and restored, such as `training`, was written to, but the contents are the same.
    """
    lengths = [*map(len, hooks)]  # ordered dicts, whose versions differ
    try:
        version = DICT_VERSION.get("watching modules")
    except UnsupportedError:  # this torch has no dict versions
        return lambda: [*map(len, hooks)] == lengths and all(one.is_same() for one in dicts)
    raw_dicts = [one.contents for one in dicts]
    versions = [*map(version, raw_dicts)]

    def unwritten() -> bool:
        now = [*map(version, raw_dicts)]
        if now != versions:
            if not all(one.is_same() for one, a, b in zip(dicts, now, versions, strict=True) if a != b):
                return False
            versions[:] = now
        return [*map(len, hooks)] == lengths

    return unwritten


def _guards(tensors: list[torch.Tensor]) -> tuple[Callable[..., bool], Callable[..., bool]] | None:
    """Return a check, in one step, that tensors have the same memory and layout, or None if that is impossible.

    PyTorch's guards are valid only with inference mode as at their creation, so there are guards for on and off.
    """
    if not tensors:
        return _always, _always
    if not all(type(t) in (torch.Tensor, torch.nn.Parameter) and is_strided(t) for t in tensors):
        return None
    try:
        here = guards_of(tensors)
        with torch.inference_mode(not torch.is_inference_mode_enabled()), torch.no_grad():
            there = guards_of(tensors)
    except UnsupportedError:
        return None
    return here, there


def _always() -> bool:
    return True


_CODE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
"""Types that are assumed not to change: a plan is verified for the program's present code."""
_CODE_OF = re.compile(r"\.__(?:code|defaults|kwdefaults|closure)__(?:\[[^\]]*\])?$")
_OF_TORCH = re.compile(r"__import_torch(?:_dot_\w+)?'")
_FASTPATH = "G['__import_torch_dot_backends_dot_mha']._is_fastpath_enabled"
"""A setting that attention and encoder layers of `torch.nn` read. It is checked on each call (`FastPath.holds`)."""
_ATTRIBUTE_GUARDS = ("HASATTR", "NOT_PRESENT_IN_GENERIC_DICT")
_INSIDE = r"(?:\._modules\['[^']*'\])*(?:\.(?:_modules|_parameters|_buffers)(?:\['[^']*'\])?|\.\w+)?"


def reads_of(guards: Sequence[Any], own: str | None) -> dict[tuple[str, ...], set[str] | None]:
    """Return the attributes that guards read of each module inside the one that `own` names."""
    reads: dict[tuple[str, ...], set[str] | None] = {}
    for guard in guards:
        place = (
            re.fullmatch(rf"{re.escape(own)}((?:\._modules\['[^']*'\])*)(?:\.(\w+))?", name_of(guard)) if own else None
        )
        if place is None:
            continue
        path = tuple(re.findall(r"\['([^']*)'\]", place[1]))
        name = place[2]
        if guard.guard_type in _ATTRIBUTE_GUARDS:
            name = _attribute_of(guard) or name
            if name is None:  # any attribute
                reads[path] = None
        names = reads.setdefault(path, set())
        if names is not None and name is not None:
            names.add(name)
    return reads


def _attribute_of(guard: Any) -> str | None:
    """Return the attribute that a guard asks for, or None if its place ends with it, as before torch 2.12."""
    keywords: dict[str, str] = getattr(guard.orig_guard.create_fn, "keywords", None) or {}
    return keywords.get("attr")


def is_covered(guard: Any, own: str | None, arguments: Mapping[str, Any]) -> bool:
    """Whether the signature, the module guard or the checks above notice every change that this guard notices."""
    name = name_of(guard)
    if not name:  # settings of PyTorch: grad mode, determinism, default dtype and device
        return True
    if _CODE_OF.search(name):
        return True
    if name.startswith(("type(", "dict(type(")):  # a class's code, or the dict of it. The rest of it is data
        return isinstance(guard.value, _CODE) or guard.guard_type == "TYPE_MATCH" or name.endswith(".__dict__)")
    if guard.is_global:
        if isinstance(guard.value, _CODE) or name == _FASTPATH:
            return True
        return _OF_TORCH.search(name) is not None and not is_frozen(guard.value)  # a plain value there is a setting
    root = re.match(r"\w+", name)
    if root and root[0] in arguments:
        return guard.guard_type not in _ATTRIBUTE_GUARDS and _is_in_signature(name[root.end() :], arguments[root[0]])
    if own is None or not re.fullmatch(re.escape(own) + _INSIDE, name):
        return False
    attribute = name.rpartition(".")[2]
    if name == own or attribute.startswith(("_modules", "_parameters", "_buffers", "_forward", "_backward")):
        return True
    if guard.guard_type == "HASATTR" and not guard.has_value and _attribute_of(guard) is None:
        return True  # it is missing, as `reads_of` notes
    return is_frozen(guard.value) or isinstance(guard.value, _CODE)


def _is_in_signature(place: str, value: Any) -> bool:
    """Whether a signature covers a place in an argument: the argument, a leaf, or a container of leaves.

    It does not cover a tensor's attributes, nor an object's private ones.
    """
    below = re.compile(re.escape(place) + r"(?=[.\[]|$)")
    return not place or any(below.match(leaf) for leaf, _ in pytree.list_named_leaves(value))


def is_frozen(value: Any) -> bool:
    """Whether nothing in a value can change."""
    return is_plain(value) or (isinstance(value, tuple) and all(map(is_frozen, value)))


def name_of(guard: Any) -> str:
    """Return the guard's place as Dynamo writes it, without the marks for local variables."""
    return re.sub(r"^L\['(\w+)'\]", r"\1", str(guard.name))


def forget_tensors(guards: Sequence[Any]) -> None:
    """Have Dynamo's guards forget their tensors, which are set again.

    With a filter, all guards are built twice. `Guard.set_export_info` checks by `in`, and so by `==`, whether the
    object is that of the first time. A guard on a NumPy array has a new tensor each time, and two live tensors compare
    element by element. That raised an error (torch 2.11 to 2.14).
    """
    for guard in guards:
        guarded = getattr(guard.orig_guard, "obj_weakref", None)
        if isinstance(guarded, weakref.ref) and isinstance(guarded(), torch.Tensor):
            guard.orig_guard.obj_weakref = None
