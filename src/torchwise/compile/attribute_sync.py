"""Synchronize attributes between a model and the copy of it that runs.

Many models keep something of a call, such as attention weights, an auxiliary loss or a count of calls. The program or
the next call reads it, so the original receives the attributes that a call sets on the copy. The copy receives the
attributes that a program sets on the original between calls, such as the strength of an adapter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.compile.guards.dict_contents import MISSING, DictContents, watch
from torchwise.compile.guards.module_guard import REGISTERED, STANDARD
from torchwise.compile.guards.varying_values import ChangedModelError, VaryingKind, VaryingValue
from torchwise.compile.signature import is_plain, is_strided
from torchwise.errors import UnsupportedError

_USUAL = torch.contiguous_format
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_EXCLUDED = STANDARD | {"forward", "_compiled_call_impl"}
"""Attributes that determine how a module is called. Calls do not set them."""
_KINDS = ("_buffers", "_modules", "_parameters")


class AttributeSync:
    """Carries changed plain attributes and buffers from a copy to its original, and back.

    Args:
        original: receives the attributes that a call sets on the copy.
        copied: a copy of it, module by module, which receives the attributes that are set on the original.
        is_own: whether a value leads to modules or weights of either, which the other must not receive.
        follows: whether another layer carries over writes to the existing buffers.

    Raises:
        UnsupportedError: a rewrite changed the number of modules, so that none of the copy stands for one of the model.
    """

    def __init__(
        self, original: torch.nn.Module, copied: torch.nn.Module, is_own: Callable[[Any], bool], *, follows: bool
    ) -> None:
        own, parts = list(original.modules()), list(copied.modules())
        if len(own) != len(parts):
            raise UnsupportedError(
                f"a rewrite made {len(parts)} modules of {len(own)}, but one of stage 'model' replaces each by one: "
                "give it the stage 'form'"
            )
        self._pairs = list(zip(own, parts, strict=True))
        self._is_own = is_own
        self._follows = follows
        self.take_snapshot()

    def take_snapshot(self) -> None:
        """Take the present attributes as the reference."""
        self._originals = [DictContents(vars(own), counts=_is_followed) for own, _ in self._pairs]
        self._copies = [DictContents(vars(part), counts=_is_carried) for _, part in self._pairs]
        self._copies += [DictContents(vars(part)[kind]) for kind in _KINDS for _, part in self._pairs]
        self._find_set, self._find_writes = watch(self._originals), watch(self._copies)

    def has_writes(self) -> bool:
        """Whether anything was set on the copy since the snapshot. It runs on every call."""
        return bool(self._find_writes())

    def follow(self) -> None:
        """Give the copy the attributes set on the original since the snapshot, by its program or by a restore.

        It runs on every call.

        Raises:
            StalePlanError: the change leads to modules or weights of the original, of which the copy has its own. Or
                the mode changed, or a submodule that a transform replaced.
        """
        if not (changed := self._find_set()):
            return
        for place, names in sorted(changed.items()):
            self._follow_one(*self._pairs[place], names)
            self._originals[place].take_snapshot()
            self._copies[place].take_snapshot()

    def _follow_one(self, own: torch.nn.Module, part: torch.nn.Module, names: list[str]) -> None:
        new = {name: vars(own)[name] for name in names if name in vars(own)}
        if not new.keys().isdisjoint(REGISTERED):
            raise _change_error("the set of the model's submodules or weights", VaryingKind.STATE)
        if type(own) is not type(part) or "training" in new:
            raise _change_error(
                "the mode of the model, or an attribute of a submodule that the plan replaces,", VaryingKind.STATE
            )
        if inside := [name for name, value in new.items() if self._leads_to_weights(value)]:
            raise _change_error(
                f"`{inside[0]}` of the model, which leads to its modules or weights,", VaryingKind.OBJECT
            )
        for name in {*names} - new.keys() - part._buffers.keys():
            vars(part).pop(name, None)
        vars(part).update(new)

    def follow_buffers(self) -> None:
        """Give the copy the original's own buffers."""
        for own, part in self._pairs:
            part._buffers.update(own._buffers)
        self.take_snapshot()

    def carry(self) -> None:
        """Give the original the attributes set on the copy since the snapshot.

        Raises:
            UnsupportedError: the call added or removed weights or modules.
        """
        written, count = self._find_writes(), len(self._pairs)
        for place, names in sorted(written.items()):
            one = self._copies[place]
            if place >= 2 * count and (other := [n for n in names if _is_missing(one, n)]):
                raise UnsupportedError(f"the call adds or removes {min(other)!r} in the model, of which a copy runs")
        for place, (own, part) in enumerate(self._pairs):
            for name in written.get(place, ()):
                self._give_attribute(own, part, name)
            for name in written.get(place + count, ()):
                if name in part._buffers:
                    self._give_buffer(own, part, name, part._buffers[name])
        self.take_snapshot()

    def _give_attribute(self, own: torch.nn.Module, part: torch.nn.Module, name: str) -> None:
        value = vars(part).get(name, MISSING)
        if value is MISSING and name not in part._buffers:
            vars(own).pop(name, None)
        elif value is not MISSING and not self._leads_to_weights(value):
            vars(own)[name] = carried = as_original(vars(own).get(name), value)
            if isinstance(carried, torch.Tensor) and carried.dtype is value.dtype:
                vars(part)[name] = carried  # one tensor for both, which a later call may write to

    def _give_buffer(self, own: torch.nn.Module, part: torch.nn.Module, name: str, buffer: torch.Tensor | None) -> None:
        if name not in own._buffers:
            vars(own).pop(name, None)
            if name in part._non_persistent_buffers_set:
                own._non_persistent_buffers_set.add(name)
        elif self._follows:
            return
        own._buffers[name] = (
            buffer if buffer is None or not self._follows else as_original(None, buffer.detach().clone())
        )

    def _leads_to_weights(self, value: Any) -> bool:
        return not isinstance(value, torch.Tensor) and not is_plain(value) and self._is_own(value)


def _is_missing(one: DictContents, name: str) -> bool:
    return one.get(name) is MISSING or one.get_now(name) is MISSING


def _is_carried(name: str, _value: Any) -> bool:
    return name not in _EXCLUDED


def _is_followed(name: str, _value: Any) -> bool:
    return name not in _EXCLUDED or name in REGISTERED


def _change_error(place: str, kind: VaryingKind) -> ChangedModelError:
    return ChangedModelError(
        f"the plan runs a copy of the model, and {place} changed since it was compiled", VaryingValue("", place, kind)
    )


def as_original(kept: Any, value: Any) -> Any:
    """Return a copy's tensor with the dtype and strides of the original's tensor.

    Without a former tensor of that shape, the strides are contiguous. The copy's tensor may be of a lower precision,
    with its channels last.
    """
    if not isinstance(value, torch.Tensor) or not is_strided(value):
        return value
    has_kept = isinstance(kept, torch.Tensor) and is_strided(kept)
    if has_kept and kept.is_floating_point() and value.is_floating_point():
        value = value.to(kept.dtype)
    if has_kept and kept.shape == value.shape:
        return value if kept.stride() == value.stride() else torch.empty_like(kept, dtype=value.dtype).copy_(value)
    return value.contiguous() if value.is_contiguous(memory_format=_LAST.get(value.dim(), _USUAL)) else value
