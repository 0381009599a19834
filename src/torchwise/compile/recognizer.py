"""Recognize a call that is like an earlier one: in C++ if the checks were compiled, or else in Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import torch

from torchwise._torch import native
from torchwise._torch.dynamo import make_tensor_check
from torchwise.compile.signature import is_plain, is_strided, opaque_leaves, plain_key, sort_leaves
from torchwise.errors import UnsupportedError
from torchwise.workload.layouts import are_disjoint, overlap_of, reach_of
from torchwise.workload.object_parts import describe, is_opaque
from torchwise.workload.pytree import PLAIN

_address = torch.Tensor.data_ptr
_NONE: Mapping[str, Any] = {}

Recognize = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]
"""Says whether a call certainly has the signature of an earlier one."""


def make_recognizer(
    args: tuple[Any, ...], kwargs: Mapping[str, Any] = _NONE, *, takes_objects: bool = False
) -> Recognize:
    """Return the fastest recognizer of calls like this one. See `Recognizer` for its arguments and errors."""
    recognizer = Recognizer(args, kwargs, takes_objects=takes_objects)
    return recognizer.translate(args, kwargs) or recognizer


class Recognizer:
    """Recognizes calls with the signature of an earlier call, faster than by computing the signature.

    It may fail to recognize a call, such as in another grad or inference mode, but never accepts a different one.
    PyTorch's own guards check all tensors in one step: type, dtype, device, layout, shape, strides, lazy negation and
    conjugation.

    Args:
        args: positional arguments of the earlier call: distinct strided tensors and plain values, also in containers
            and dataclasses.
        kwargs: keyword arguments of the earlier call.
        takes_objects: whether other objects count by their class alone, as in a signature. Then somebody else has to
            compare their contents.

    Raises:
        UnsupportedError: they have other values, or this torch lacks those guards.
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any] = _NONE, *, takes_objects: bool = False
    ) -> None:
        tensors: list[torch.Tensor] = []
        self._around: list[Any] = []
        sort_leaves((args, dict(kwargs)), tensors, self._around)
        are_plain = all(type(tensor) is torch.Tensor and is_strided(tensor) for tensor in tensors)
        are_distinct = 0 < len(tensors) == len(set(map(id, tensors)))
        if not are_plain or not are_distinct or (not takes_objects and opaque_leaves((args, dict(kwargs)))):
            raise UnsupportedError(
                "it is recognised by its signature: there are other than distinct strided tensors and values"
            )
        leaves = (*args, *kwargs.values())
        self._is_flat = all(type(leaf) is torch.Tensor or type(leaf) in PLAIN for leaf in leaves)
        self._positional_count, self._names = len(args), tuple(kwargs)
        self._places = [place for place, leaf in enumerate(leaves) if type(leaf) is torch.Tensor]
        self._plain = [(place, plain_key(leaf)) for place, leaf in enumerate(leaves) if type(leaf) in PLAIN]
        self._reaches, self._overlap = [*map(reach_of, tensors)], overlap_of(tensors)
        self._addresses = [*map(_address, tensors)]
        empty = [place for place, reach in enumerate(self._reaches) if not reach]
        self._empty = empty if len(empty) > 1 else []
        self._check = make_tensor_check(tensors)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] = _NONE) -> bool:
        """Whether a call with these arguments certainly has the same signature."""
        if self._is_flat:  # the usual case is the quickest
            if len(args) != self._positional_count or (tuple(kwargs) != self._names if kwargs else self._names):
                return False
            leaves = (*args, *kwargs.values()) if kwargs else args
            for place, key in self._plain:
                if plain_key(leaves[place]) != key:
                    return False
            flat = [leaves[place] for place in self._places] if self._plain else leaves
            return self._are_alike(flat)
        tensors: list[torch.Tensor] = []
        around: list[Any] = []
        sort_leaves((args, kwargs), tensors, around)
        return around == self._around and self._are_alike(tensors)

    def _are_alike(self, tensors: Sequence[torch.Tensor]) -> bool:
        for tensor in tensors:
            if getattr(tensor, "is_nested", False):  # PyTorch's guards end the process on a nested one
                return False
        return self._check(*tensors) and self._lie_alike(tensors)

    def _lie_alike(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors, each like one of the call seen, share memory as those do, or none."""
        if len(self._reaches) == 1:
            return True
        if self._empty and len({id(tensors[place]) for place in self._empty}) < len(self._empty):
            return False  # one empty tensor given twice, which no address shows
        addresses = [*map(_address, tensors)]
        if addresses == self._addresses:  # a program in its stride gives the same addresses again and again
            return True
        is_apart = self._overlap is None and are_disjoint(addresses, self._reaches)
        if not is_apart and overlap_of(tensors) != self._overlap:
            return False
        self._addresses = addresses
        return True

    def translate(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] = _NONE) -> Recognize | None:
        """Return the same check in C++, or None. It asks this one about calls that it cannot judge.

        Args:
            args: positional arguments of the earlier call.
            kwargs: keyword arguments of the earlier call.
        """
        checks = native.load_checks()
        program: list[Step] = []
        tensors: list[torch.Tensor] = []
        if checks is None or not _list_steps((args, dict(kwargs)), program, tensors):
            return None
        given = (tuple(program), tuple(tensors), tuple(self._reaches), self._overlap is not None)
        found: Recognize = checks.Recognizer(*given, self)
        return found


class StepKind(IntEnum):
    """The kinds of values that C++ compares, by their numbers there (`native/recognizer.h`)."""

    TENSOR = 0
    SEQUENCE = 1
    DICT = 2
    PLAIN = 3
    FIELDS = 4
    OPAQUE = 5


Step = tuple[StepKind, type, Any, int]
"""A value of a call: its kind and class, the names in it or its plain value, and its length."""


def _list_steps(children: Iterable[Any], program: list[Step], tensors: list[torch.Tensor]) -> bool:
    """List the values of a call in the order in which they are compared. Return False if Python must compare them."""
    for child in children:
        kind = type(child)
        inner: Iterable[Any] = ()
        if kind is torch.Tensor:
            tensors.append(child)
            step: Step = (StepKind.TENSOR, kind, None, 0)
        elif kind in PLAIN:
            step = (StepKind.PLAIN, kind, child, 0)
        elif kind is tuple or kind is list:
            step, inner = (StepKind.SEQUENCE, kind, None, len(child)), child
        elif kind is dict and all(type(name) is str for name in child):
            step, inner = (StepKind.DICT, kind, tuple(child), 0), child.values()
        elif kind is not dict and describe(child).key == (kind, names := _names_of(child)):
            named = isinstance(names, tuple)
            step = (StepKind.FIELDS, kind, names, 0) if named else (StepKind.SEQUENCE, kind, None, len(child))
            inner = describe(child).values
        elif not is_plain(child) and is_opaque(child):
            step = (StepKind.OPAQUE, kind, None, 0)
        else:
            return False
        program.append(step)
        if not _list_steps(inner, program, tensors):
            return False
    return True


def _names_of(thing: Any) -> tuple[str, ...] | int | None:
    """Return the names of all fields of a dataclass, or the length of a named tuple, as `describe` does.

    C++ reads the values in a tuple itself, so a class that yields others has none here.
    """
    if isinstance(thing, tuple):
        return tuple.__len__(thing) if type(thing).__iter__ is tuple.__iter__ else None
    return tuple(field.name for field in dataclasses.fields(thing)) if dataclasses.is_dataclass(thing) else None
