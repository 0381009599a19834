"""Copies of a model that share the original's weights, or are synchronized with them."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchwise.compile.attribute_sync import AttributeSync, as_original
from torchwise.compile.guards.module_guard import STANDARD, ModuleGuard, Reads
from torchwise.compile.guards.varying_values import ChangedModelError, VaryingKind, VaryingValue
from torchwise.compile.memory_formats import lay_out
from torchwise.errors import UnsupportedError, WorkloadError
from torchwise.plan import Plan
from torchwise.workload import pytree
from torchwise.workload.deep_copy import deep_copy
from torchwise.workload.layouts import count_writes

_ATOMS = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, weakref.ref, torch.Tensor)
"""Types that are not looked into for modules: a deep copy does not copy them either."""


def share(
    module: torch.nn.Module,
    derive: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    *,
    with_state: bool = True,
) -> torch.nn.Module:
    """Copy a module's structure. Each parameter and buffer becomes `derive` of the original's, or the original's own.

    Plain attributes and dicts of hooks are the original's own, so that later changes to them are seen on both sides. If
    one holds a module or a weight, it is copied, and only the tensors in lists and dicts are the original's.

    Without `with_state` only the parameters are shared. Then a call of the copy leaves no trace in the original.

    Raises:
        UnsupportedError: the module cannot be copied. A plan that changes the model's structure cannot be used then.
    """
    if with_state and any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise UnsupportedError("the model has a TorchScript module, of which no copy can share weights")
    memo: dict[int, Any] = {}
    if with_state:
        plain = [value for part in module.modules() for name, value in vars(part).items() if name not in STANDARD]
        memo |= {id(tensor): tensor for tensor in pytree.tensors(plain)}
        memo |= {id(value): value for value in _find_independent(module)}
    memo |= {id(tensor): derive(tensor) for tensor in (_tensors(module) if with_state else module.parameters())}
    try:
        copied: torch.nn.Module = deep_copy(module, memo)
    except WorkloadError as error:
        raise UnsupportedError(f"the model cannot be copied: {error}") from error
    own = {id(part) for part in module.modules()}
    for name, part in copied.named_modules():
        if id(part) in own:  # by its __deepcopy__, and changes to the copy would change the user's model
            raise UnsupportedError(f"the model cannot be copied: copying {name or 'it'} returns the original object")
    return copied


def _find_independent(module: torch.nn.Module) -> list[Any]:
    """List the plain attributes and dicts of hooks that lead to no module and no weight."""
    states = [vars(part) for part in module.modules()]
    values = [state[name] for state in states for name in state if name not in STANDARD or "hooks" in name]
    weights, independent = set(map(id, _tensors(module))), set[int]()
    return [value for value in values if not _leads_inside(value, weights, independent)]


def _leads_inside(value: Any, weights: set[int], independent: set[int]) -> bool:
    """Whether a value holds a module or a weight, however deep. If not, add its contents to `independent`."""
    visited, pending = set[int](), [value]
    while pending:
        one = pending.pop()
        if isinstance(one, torch.nn.Module) or id(one) in weights:
            return True
        if id(one) not in visited and id(one) not in independent and not isinstance(one, _ATOMS):
            visited.add(id(one))
            pending += gc.get_referents(one)
    independent |= visited
    return False


class DerivedWeights:
    """A copy of a module in another precision or memory format, updated when the original's weights change.

    Writes of a call to the copy's buffers, and attributes that it sets, are carried to the original.

    Raises (on call):
        StalePlanError: the original has another structure, other shapes, or attributes with other modules or weights.
    """

    def __init__(self, module: torch.nn.Module, plan: Plan) -> None:
        self._original = module
        self._plan = plan
        self._watch = ModuleGuard(module, lambda: _NONE)
        self._versions = _versions_of(self._watch)  # before the copy: writes meanwhile are copied again
        with torch.inference_mode(False):  # or writes to the copy's buffers would not be counted
            self.copy = share(module, lambda tensor: _derive(tensor, plan))
        self._list_buffers()
        self._set = attributes_of(module, self.copy, follows=True)
        for part in self.copy.modules():
            if isinstance(part, torch.nn.RNNBase):
                part.flatten_parameters()  # into one piece, or cuDNN does so on every call

    def with_weight_sync(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call`: copy changed weights over before it, and carry its writes to buffers back after it."""

        def follow(*args: Any, **kwargs: Any) -> Any:
            self._set.follow()
            if self._watch.has_changed() or self._watch.versions() != self._versions:
                self._refresh()
            try:
                answer = call(*args, **kwargs)
            except BaseException:  # raised again: the original answers in its place, and does the writes
                if self._wrote():
                    self._versions = []  # so that the copy is brought back to the original's state
                raise
            if self._wrote() and self._versions:  # else another call is copying the weights over
                self._write_back()
            if self._set.has_writes():
                self._carry()
            return answer

        return follow

    def _list_buffers(self) -> None:
        pairs = zip(self._original.modules(), self.copy.modules(), strict=True)
        self._buffers = [(own._buffers, copied._buffers, name) for own, copied in pairs for name in own._buffers]
        self._counted = self._counts()

    def _carry(self) -> None:
        """Give the original the attributes that the model set on itself, and go on following it as it is then."""
        moved = self._watch.has_changed()  # by somebody else, during the call
        current = self._watch.versions() == self._versions
        self._set.carry()
        self._list_buffers()
        if not moved:
            self._watch.take_snapshot()
            self._versions = _versions_of(self._watch) if current else []

    def _counts(self) -> list[tuple[torch.Tensor | None, int | None]]:
        """List the copy's buffers, each with the count of the writes to it."""
        return [(t, _count(t)) for t in [copied.get(name) for _, copied, name in self._buffers]]

    def _wrote(self) -> bool:
        """Whether the model wrote to a buffer of the copy, or put another in its place. This runs on every call."""
        pairs = zip(self._counts(), self._counted, strict=True)
        return any(new is not old or now != was for (new, now), (old, was) in pairs)

    def _write_back(self) -> None:
        """Give the original the model's writes, and only those: other buffers may have more precision there."""
        # Else the original changed during the call, and the next one brings the copy up to date.
        current = not self._watch.has_changed() and self._watch.versions() == self._versions
        with torch.inference_mode(False), torch.no_grad():
            for (own, copied, name), (old, was) in zip(self._buffers, self._counted, strict=True):
                kept, written = own.get(name), copied.get(name)
                if written is not old:  # another was put in its place
                    own[name] = _like(kept, written)
                elif kept is not None and written is not None and _count(written) != was:
                    pytree.write(kept, written)
        self._counted = self._counts()
        if current and self._watch.has_changed():  # by a buffer that took the place of another
            self._watch.take_snapshot()
        self._versions = _versions_of(self._watch) if current else []

    def _refresh(self) -> None:
        if self._watch.has_new_structure():
            raise _stale(self._watch)
        self._versions = []  # until all is copied, no other call may go by the copy
        self._watch.take_snapshot()
        versions = _versions_of(self._watch)
        with torch.inference_mode(False), torch.no_grad():
            for source, target in zip(self._original.parameters(), self.copy.parameters(), strict=True):
                if source.shape != target.shape:
                    message = f"a weight changed shape from {tuple(target.shape)} to {tuple(source.shape)}"
                    raise ChangedModelError(message, VaryingValue("", "the shape of a weight", VaryingKind.STATE))
                target.copy_(source)
            for own, copied, name in self._buffers:
                self._refresh_buffer(own[name], copied, name)
        self._set.take_snapshot()
        self._list_buffers()
        self._versions = versions

    def _refresh_buffer(self, source: torch.Tensor | None, copied: dict[str, torch.Tensor | None], name: str) -> None:
        target = copied[name]
        if source is None or target is None or target.is_inference() or not _fits(source, target):
            copied[name] = None if source is None else _derive(source, self._plan)  # it grew, or shrank
        else:
            target.copy_(source)


class ModuleChangeGuard:
    """Checks that a module has not changed since code was compiled for it, other than by the calls themselves.

    Args:
        module: the original module.
        values: whether the code is valid only for the present values of the weights, as with freezing.
        of_parameters: whether only parameters are weights then, as it reads buffers where they are. A call may write
            to those, such as to a cache of keys and values.
        copied: the copy that is called instead, if any. Attributes that it sets on itself are carried over, and
            attributes set on the original are carried to it.
        itself: whether the module itself is called, so that the code reads its plain attributes.

    Raises (on call):
        StalePlanError: it changed.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        values: bool,
        of_parameters: bool = False,
        copied: torch.nn.Module | None = None,
        itself: bool = False,
    ) -> None:
        freezes_all = values and not of_parameters

        def reads() -> Reads | None:
            return _tensor_attributes(module) if freezes_all else _NONE if copied is not None else None

        self._watch = ModuleGuard(module, reads if itself or copied is not None else lambda: None)
        self._values, self._freezes_all = values, freezes_all
        self._set = attributes_of(module, copied, follows=False) if copied is not None else None
        self._take_snapshot()

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a call, or a shorter way for one. All that are wrapped share one look at the attributes."""

        def guard(*args: Any, **kwargs: Any) -> Any:
            self._check()
            answer = call(*args, **kwargs)
            if self._set is not None and self._set.has_writes():
                self._check()  # somebody else may have changed it during the call
                self._set.carry()
                self._take_snapshot()
            return answer

        return guard

    def _check(self) -> None:
        if self._values and self._count_writes() != self._versions:
            varied = VaryingValue("", "the values of the weights", VaryingKind.CONTENT)
            raise ChangedModelError("the weights changed since they were frozen into the plan", varied)
        if self._set is not None:
            self._set.follow()
        if not self._watch.has_changed():
            return
        if (
            self._set is None
            or self._freezes_all
            or self._watch.has_new_structure()
            or self._watch.has_new_parameters()
        ):
            raise _stale(self._watch)
        self._set.follow_buffers()
        self._watch.take_snapshot()

    def _take_snapshot(self) -> None:
        self._watch.take_snapshot()
        self._versions = check_counted(self._count_writes()) if self._values else []

    def _count_writes(self) -> list[int | None]:
        return self._watch.versions(of_parameters=not self._freezes_all)


def _stale(watch: ModuleGuard) -> ChangedModelError:
    """Return the error for a module that changed."""
    found = watch.difference()
    return ChangedModelError(f"the model changed since it was compiled by the plan: {found.place} is different", found)


def _tensor_attributes(module: torch.nn.Module) -> Reads:
    """Return the plain attributes that are tensors, which may be frozen into code."""
    return {
        tuple(path.split(".")) if path else (): {
            name for name, value in vars(part).items() if name not in STANDARD and isinstance(value, torch.Tensor)
        }
        for path, part in module.named_modules()
    }


_NONE: Reads = {}
"""No plain attribute."""


def attributes_of(original: torch.nn.Module, copied: torch.nn.Module, *, follows: bool) -> AttributeSync:
    """Watch the attributes that calls set on a copy, for the original, with `follows` as for `AttributeSync`."""

    def is_own(value: Any) -> bool:
        return _leads_inside(value, {*map(id, _tensors(copied)), *map(id, _tensors(original))}, set())

    return AttributeSync(original, copied, is_own, follows=follows)


def _versions_of(watch: ModuleGuard) -> list[int | None]:
    """Count the writes to each tensor. See `check_counted`."""
    return check_counted(watch.versions())


def check_counted(versions: list[int | None]) -> list[int | None]:
    """Return counts of writes to weights.

    Raises:
        UnsupportedError: one was made in inference mode, which keeps no count: new weights would go unnoticed.
    """
    if None in versions:
        raise UnsupportedError(
            "a weight was created in inference mode, where PyTorch does not count writes to it, but the plan keeps "
            "copies of the weights: create the model outside inference mode"
        )
    return versions


def _like(kept: torch.Tensor | None, written: torch.Tensor | None) -> torch.Tensor | None:
    """Copy the model's new tensor for a buffer, in the dtype and layout that the original has there."""
    return None if written is None else as_original(kept, written.detach().clone())


def _count(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else count_writes(tensor)


def _fits(source: torch.Tensor, target: torch.Tensor) -> bool:
    return source.shape == target.shape and source.device == target.device


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _derive(tensor: torch.Tensor, plan: Plan) -> torch.Tensor:
    # Always memory of its own: a tensor shared with the original would be copied onto itself when it changes.
    derived = tensor.detach().clone()
    if plan.precision == "bf16" and tensor.is_floating_point():
        derived = derived.to(torch.bfloat16)
    derived = lay_out(plan.memory_format, derived)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(derived, tensor.requires_grad)
    return derived
