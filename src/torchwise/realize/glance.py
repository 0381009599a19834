"""A glance at a module: whether it is surely what it was, without looking closely.

It runs on every call of a captured graph and of compiled code, nearly all of it in C: whether no dict of a module was
written to, by the counts of writes that Python keeps and Dynamo reads, and whether the tensors lie where and as they
did, by the guards that Dynamo checks compiled code with. Where something was written, it looks at whether every
submodule, parameter, buffer and plain attribute is the very object that it was, and whether nothing was added. The
classes of the submodules are looked at on every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch

from torchwise.errors import UnsupportedError
from torchwise.realize.private import look_up
from torchwise.realize.signature import guards_of, is_strided

_address = torch.Tensor.data_ptr
_values = dict.values
_flat = chain.from_iterable

DICT_VERSION = ("torch._C._dynamo.guards", "dict_version")

STANDARD = frozenset(torch.nn.Module().__dict__) - {"training"}
"""What every module has, and what is looked at otherwise or does not bear on its answers."""
_REGISTERED = ("_modules", "_parameters", "_buffers")


def glance_at(module: torch.nn.Module) -> Callable[[], bool]:
    """Return what tells whether a module is surely as it is now. Where it says no, a closer look must decide.

    It says no to what changes no answer, too: another object in a place with the same memory, another grad mode.
    """
    children = list(module.modules())
    kinds = [*map(type, children)]
    states = [*map(vars, children)]
    dicts = [state[kind] for state in states for kind in _REGISTERED]
    # A deletion from a Sequential puts another dict in the place of `_modules`.
    getters = [itemgetter(*_REGISTERED, *(name for name in state if name not in STANDARD)) for state in states]
    hooks = [state[kind] for state in states for kind in ("_forward_hooks", "_forward_pre_hooks")]
    holders: list[Sized] = [*states, *hooks]
    names, registered = [*_flat(dicts)], [*_flat(map(_values, dicts))]
    attributes = [*_flat([get(state) for get, state in zip(getters, states, strict=True)])]
    tensors = [value for value in (*registered, *attributes) if isinstance(value, torch.Tensor)]
    alike = _guards(tensors)
    if alike is None:
        return lambda: False
    pairs = list(zip(getters, states, strict=True))
    lengths, addresses = [*map(len, holders)], [*map(_address, tensors)]

    def closely() -> bool:
        try:
            plain = [*_flat([get(state) for get, state in pairs])]
        except KeyError:
            return False
        return (
            [*_flat(dicts)] == names
            and all(map(is_, _flat(map(_values, dicts)), registered))
            and all(map(is_, plain, attributes))
            and [*map(len, holders)] == lengths
        )

    unwritten = unwritten_since([*states, *dicts], hooks, closely)
    return lambda: (
        unwritten()
        and [*map(_address, tensors)] == addresses
        and [*map(type, children)] == kinds  # another class is no write to a dict
        and alike(*tensors)
    )


def unwritten_since(dicts: list[Any], hooks: list[Any], closely: Callable[[], bool]) -> Callable[[], bool]:
    """Return what tells whether dicts hold what they hold now: by their counts of writes, or else by looking closely.

    What was set and put back, such as `training`, was written to, and a look then finds that nothing changed.
    """
    try:
        version = look_up("watching modules", DICT_VERSION)
    except UnsupportedError:  # this torch reads no counts
        return closely
    lengths = [*map(len, hooks)]  # ordered dicts, which count otherwise
    seen = [*map(version, dicts)]

    def unwritten() -> bool:
        now = [*map(version, dicts)]
        if now == seen:
            return [*map(len, hooks)] == lengths
        if not closely():
            return False
        seen[:] = now
        return True

    return unwritten


def _guards(tensors: list[torch.Tensor]) -> Callable[..., bool] | None:
    """Return what tells whether tensors lie as they do now, in one step; None where that cannot be told."""
    if not tensors:
        return lambda: True
    if not all(type(t) in (torch.Tensor, torch.nn.Parameter) and is_strided(t) for t in tensors):
        return None
    try:
        return guards_of(tensors)
    except UnsupportedError:
        return None
