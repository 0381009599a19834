"""Read Dynamo's guards, and decide whether Torchwise's own checks already cover them."""

from __future__ import annotations

import re
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchwise.compile.signature import is_plain
from torchwise.workload import pytree

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
