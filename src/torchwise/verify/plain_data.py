"""Testimonies as plain data, which a process can read from another one without running any of its code."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from torchwise.verify.leaves import is_value
from torchwise.verify.observe import Observation
from torchwise.verify.witness import Testimony

PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, type(None))
MAX_ERROR = 500
"""Characters of a candidate's error that are told."""


def with_plain_leaves(one: Observation) -> Observation:
    """Return an observation whose leaves are tensors and plain values: other objects are told in words."""
    return replace(one, leaves=tuple((name, _to_plain(leaf)) for name, leaf in one.leaves))


def _to_plain(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf if type(leaf) is torch.Tensor else leaf.detach().as_subclass(torch.Tensor)
    if type(leaf) in PLAIN:
        return leaf
    kind = type(leaf).__qualname__
    return f"{kind} {leaf!r}" if is_value(leaf) else f"an object of class {kind}"


def with_number_tensors(one: Observation, native: Observation) -> Observation:
    """Return an observation whose plain fractions are tensors, where the reference has such numbers, too.

    They are rounded as tensors are. A number that float32 holds is taken for one of float32, as `Tensor.item` gives it.
    Integers and booleans stay, as they must be equal in tensors, too. `native` is the reference's own observation.
    """
    known = dict(native.leaves)

    def convert(name: str, leaf: Any) -> Any:
        like = known.get(name)
        if type(leaf) not in (float, complex) or type(like) is not type(leaf):
            return leaf
        assert like is not None
        wide = torch.tensor(like, dtype=torch.complex128 if isinstance(like, complex) else torch.float64)
        narrow = wide.to(torch.complex64 if isinstance(like, complex) else torch.float32)
        is_narrow = torch.equal(narrow.to(wide.dtype), wide) or not math.isfinite(abs(like))
        return torch.tensor(leaf, dtype=narrow.dtype if is_narrow else wide.dtype)

    return replace(one, leaves=tuple((name, convert(name, leaf)) for name, leaf in one.leaves))


def describe_testimony(told: Testimony) -> dict[str, Any]:
    """Return a testimony as dicts, lists, tensors and plain values."""
    return {
        "observation": _describe_observation(told.observation),
        "again": _describe_observation(told.again),
        "error": told.error[:MAX_ERROR],
        "faults": list(told.faults),
        "late": told.late,
        "kinds": list(told.kinds),
        "refuses": told.refuses,
    }


def _describe_observation(one: Observation | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "leaves": [[name, leaf] for name, leaf in with_plain_leaves(one).leaves],
        "aliases": [list(pair) for pair in one.aliases],
        "shared": [list(pair) for pair in one.shared],
        "form": list(one.form),
        "calls": one.calls,
        "outputs": list(one.outputs),
    }


def read_testimony(told: dict[str, Any]) -> Testimony:
    """Read the output of `describe_testimony`.

    Raises:
        KeyError: a field is missing. A TypeError or ValueError is raised for a field of another kind.
    """
    return Testimony(
        _read_observation(told["observation"]),
        _read_observation(told["again"]),
        str(told["error"]),
        tuple(map(str, told["faults"])),
        bool(told["late"]),
        tuple(map(str, told["kinds"])),
        bool(told["refuses"]),
    )


def _read_observation(one: dict[str, Any] | None) -> Observation | None:
    if one is None:
        return None
    return Observation(
        tuple((str(name), leaf) for name, leaf in one["leaves"]),
        frozenset((int(a), int(b)) for a, b in one["aliases"]),
        frozenset((int(a), int(b)) for a, b in one["shared"]),
        tuple(map(str, one["form"])),
        int(one["calls"]),
        frozenset(map(str, one["outputs"])),
    )
