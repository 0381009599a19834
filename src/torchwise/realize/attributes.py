"""What a model sets on itself when it is called: where a copy is called in its place, the original is given it.

Many a model keeps something of a call, as its attention weights, an auxiliary loss or how often it was called, for its
program to read afterwards, or for its next call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.realize.glance import STANDARD, unwritten_since
from torchwise.realize.signature import is_plain, is_strided

_MISSING = object()
_USUAL = torch.contiguous_format
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_APART = STANDARD | {"forward", "_compiled_call_impl"}
"""What says how a module is called, and not what a call set."""


class Attributes:
    """The plain attributes and the buffers of a copy's modules, watched for what calls set there.

    Args:
        original: is given what is set.
        copied: a copy of it, module by module.
        is_own: whether a value leads to modules or weights of the copy, which the original must not be given.
        follows: whether somebody else carries over what is written to the buffers that there are.
    """

    def __init__(
        self, original: torch.nn.Module, copied: torch.nn.Module, is_own: Callable[[Any], bool], *, follows: bool
    ) -> None:
        self._pairs = list(zip(original.modules(), copied.modules(), strict=True))
        self._is_own = is_own
        self._follows = follows
        self.look()

    def look(self) -> None:
        """Take what is set now for what was there."""
        parts = [part for _, part in self._pairs]
        self._seen = [_held(part) for part in parts]
        self._given = [_plain(own) for own, _ in self._pairs]
        watched = [held for p in parts for held in (vars(p), p._buffers, p._modules, p._parameters)]
        self._unwritten = unwritten_since(watched, [], self._is_as_seen)

    def written(self) -> bool:
        """Whether anything was set on the copy since. It runs on every call."""
        return not self._unwritten()

    def follow(self) -> None:
        """Give the copy what was set on the original since: by its program, or where its state was put back.

        Raises:
            StalePlanError: that leads to modules or weights of the original, which the copy has as its own.
        """
        for (own, part), given in zip(self._pairs, self._given, strict=True):
            now = _plain(own)
            for name in given.keys() - now.keys() - part._buffers.keys():
                vars(part).pop(name, None)
            for name, value in now.items():
                if given.get(name, _MISSING) is value:
                    continue
                if self._leads_to_weights(value):
                    raise StalePlanError(f"attribute {name!r} was set to what holds modules or weights of the model")
                vars(part)[name] = value
            if not self._follows:
                part._buffers.update(own._buffers)
        self.look()

    def carry(self) -> None:
        """Give the original what was set on the copy since.

        Raises:
            UnsupportedError: that are weights or modules, which are made once, with numbers of their own.
        """
        for (_, part), (_, _, inside) in zip(self._pairs, self._seen, strict=True):
            if other := {**part._modules, **part._parameters}.keys() ^ inside.keys():
                raise UnsupportedError(f"the call adds or removes {min(other)!r} in the model, of which a copy is run")
        for (own, part), (plain, buffers, _) in zip(self._pairs, self._seen, strict=True):
            now = _plain(part)
            for name in plain.keys() - now.keys() - part._buffers.keys():
                vars(own).pop(name, None)
            for name, value in now.items():
                if plain.get(name, _MISSING) is not value and not self._leads_to_weights(value):
                    vars(own)[name] = given = as_original(vars(own).get(name), value)
                    if isinstance(given, torch.Tensor) and given.dtype is value.dtype:
                        vars(part)[name] = given  # one for both, which a later call may write to
            for name, buffer in part._buffers.items():
                if buffers.get(name, _MISSING) is not buffer:
                    self._give_buffer(own, part, name, buffer)
        self.look()

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

    def _is_as_seen(self) -> bool:
        for (_, part), seen in zip(self._pairs, self._seen, strict=True):
            for now, was in zip(_held(part), seen, strict=True):
                if now.keys() != was.keys() or any(value is not was[name] for name, value in now.items()):
                    return False
        return True

    def _leads_to_weights(self, value: Any) -> bool:
        return not isinstance(value, torch.Tensor) and not is_plain(value) and self._is_own(value)


def _held(part: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return a module's plain attributes, its buffers, and its modules and weights."""
    return _plain(part), dict(part._buffers), {**part._modules, **part._parameters}


def _plain(part: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if name not in _APART}


def as_original(kept: Any, value: Any) -> Any:
    """Give a tensor the dtype that the original's own had in its place, and strides as it would have them: those that
    it had, or else contiguous ones. That of a copy may be of a lower precision, with its channels last.
    """
    if not isinstance(value, torch.Tensor) or not is_strided(value):
        return value
    has_kept = isinstance(kept, torch.Tensor) and is_strided(kept)
    if has_kept and kept.is_floating_point() and value.is_floating_point():
        value = value.to(kept.dtype)
    if has_kept and kept.shape == value.shape:
        return value if kept.stride() == value.stride() else torch.empty_like(kept, dtype=value.dtype).copy_(value)
    return value.contiguous() if value.is_contiguous(memory_format=_LAST.get(value.dim(), _USUAL)) else value
