"""Deep copies of models, steps and inputs, with all that `copy.deepcopy` refuses of PyTorch's and Python's own.

Copies of tensors, of any layout, share memory if their originals do.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import gc
import io
import logging
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

import torch

from torchwise.errors import TorchwiseError, WorkloadError
from torchwise.workload import pytree
from torchwise.workload.closure import closes_over_state, with_copied_closure

_LOCKS: dict[type, Callable[[Any], Any]] = {
    type(threading.Lock()): lambda _: threading.Lock(),
    type(threading.RLock()): lambda _: threading.RLock(),
}
_FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_THREADS = (threading.Barrier, threading.Condition, threading.Event, threading.Semaphore, threading.Thread, Executor)
_REFERENCES = (weakref.ref, weakref.ProxyType, weakref.CallableProxyType)
_SHARED = (types.ModuleType, contextvars.ContextVar, logging.Logger, logging.Handler, *_REFERENCES, *_FILES, *_THREADS)
"""Types whose objects a copy shares: they cannot be copied, and are no state of a model."""
_CLOSED = (type, types.CodeType, types.FrameType, types.TracebackType, types.GeneratorType, types.CoroutineType)
"""Types whose contents are not searched, as a deep copy does not copy them either."""


def deep_copy(
    thing: Any,
    memo: dict[int, Any] | None = None,
    *,
    convert: Callable[[torch.Tensor], torch.Tensor] | None = None,
    keep: tuple[type, ...] = (),
) -> Any:
    """Copy any object as `copy.deepcopy` does, and objects that `copy.deepcopy` refuses.

    Tensors of every layout are copied with their strides. The result of a graph becomes a value without one. Tensors
    that share memory share it in the copy. Random generators are copied with their state. Locks are created again.
    Objects that cannot be copied and hold no state, such as an open file or a thread, are shared.

    Args:
        thing: the object to copy.
        memo: that of `copy.deepcopy`, the copy of each object by its id. An object that is its own copy there is
            shared.
        convert: converts each copied tensor, element by element, such as to float64.
        keep: types whose objects are shared.

    Raises:
        WorkloadError: something in it cannot be copied. The message names the type and the attribute that leads there.
    """
    own = memo if isinstance(memo, Memo) else Memo(memo or {}, convert, keep)
    own.find_special_objects(thing)
    try:
        copied = copy.deepcopy(thing, own)
    except TorchwiseError:
        raise
    except Exception as error:  # copying an object may raise anything
        path, held = _find_uncopyable(thing, own.begin_anew, {id(thing)})
        kind = f"an object of type {type(held).__qualname__}"
        found = f"{type(thing).__name__} holds {kind} as {path.removeprefix('.')}, which" if path else kind
        raise WorkloadError(
            f"{found} cannot be copied ({type(error).__name__}: {error}): define __deepcopy__ in its class, or store "
            "it outside of the model's attributes, such as in a global variable"
        ) from error
    if memo is not None and memo is not own:
        memo.update(own)
    return copied


class Memo(dict[int, Any]):
    """A memo of `copy.deepcopy` that copies certain objects in its own way when they are looked up.

    `copy.deepcopy` is not patched, as another thread may be copying. So these objects are found beforehand.
    """

    def __init__(
        self, known: dict[int, Any], convert: Callable[[torch.Tensor], torch.Tensor] | None, keep: tuple[type, ...]
    ) -> None:
        super().__init__(known)
        self.begin_anew = lambda: Memo(known, convert, keep)
        self._keep = (*_SHARED, *_torch_shared_types(), *keep)
        self._objects: dict[int, Any] = {}  # which also holds them, or another object could get the id of one
        self._copiers: dict[int, Callable[[Any], Any]] = {}
        self._tensors = TensorCopies(convert)

    def find_special_objects(self, thing: Any) -> None:
        """Find the objects that are copied specially."""
        pending = [thing]
        while pending:
            found = pending.pop()
            if id(found) in self._objects or super().__contains__(id(found)):
                continue
            self._objects[id(found)] = found
            copier = self._find_copier(found)
            if copier is not None:
                self._copiers[id(found)] = copier
            if copier is not _itself:
                pending += _find_referents(found)

    def get(self, key: int, default: Any = None) -> Any:
        """Return the copy of the object with this id, making it if needed, which `dict.get` would not."""
        return self[key] if key in self else default  # noqa: SIM401

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._copiers

    def __missing__(self, key: int) -> Any:
        if key not in self._copiers:
            raise KeyError(key)
        copied = self._copiers[key](self._objects[key])
        if copied is self._objects[key]:
            return copied
        self[key] = copied
        if self._copiers[key] == self._tensors.copy:
            self._copy_attributes(self._objects[key], copied)
        return copied

    def _find_copier(self, found: Any) -> Callable[[Any], Any] | None:
        kind: type = type(found)  # and not its `__class__`, by which a proxy says that it is something else
        special = {weakref.ref: self._reference, threading.local: self._local, types.MappingProxyType: self._proxy}
        if kind in special:
            return special[kind]
        if issubclass(kind, self._keep):
            return _itself
        if issubclass(kind, torch.Tensor):
            self._tensors.add(found)
            return self._tensors.copy
        if issubclass(kind, torch.Generator):
            return _generator
        if kind is types.FunctionType and closes_over_state(found, (*self._keep, *_CLOSED)):
            return self._function
        return _LOCKS.get(kind)

    def _reference(self, reference: Any) -> Any:
        """Return a weak reference to the copy of the target, or the same reference if the target is not copied."""
        target = reference()
        return weakref.ref(copy.deepcopy(target, self)) if id(target) in self._objects else reference

    def _function(self, function: Any) -> Any:
        """Copy a function with the objects it closes over. Share it if one of those cannot be copied."""
        before = len(self)
        try:
            return with_copied_closure(function, self)
        except Exception:  # copying an object may raise anything
            while len(self) > before:  # half-made copies
                self.popitem()
            return function

    def _local(self, local: Any) -> Any:
        copied = threading.local()
        vars(copied).update(copy.deepcopy(vars(local), self))
        return copied

    def _proxy(self, proxy: Any) -> Any:
        return types.MappingProxyType(copy.deepcopy(dict(proxy), self))

    def _copy_attributes(self, tensor: torch.Tensor, copied: torch.Tensor) -> None:
        if is_plain_tensor(tensor):  # others bring theirs along
            vars(copied).update(copy.deepcopy(vars(tensor), self))
        if gradient := gradient_of(tensor):
            copied.grad = copy.deepcopy(gradient[0], self)


def _find_referents(found: Any) -> list[Any]:
    """List the objects that an object refers to and that a copy of it may have to copy."""
    if issubclass(type(found), _CLOSED):
        return []
    if issubclass(type(found), torch.Tensor):
        return [*vars(found).values(), *gradient_of(found)]
    if type(found) is types.FunctionType:  # and not all that it sees by global names
        return [*(found.__closure__ or ()), found.__defaults__, found.__kwdefaults__, vars(found)]
    return gc.get_referents(found)


def _itself(thing: Any) -> Any:
    return thing


def _generator(generator: torch.Generator) -> torch.Generator:
    """Copy a generator with its state. Return PyTorch's own, which `torch.manual_seed` seeds, as it is."""
    if any(generator is known for known in (torch.default_generator, *torch.cuda.default_generators)):
        return generator
    copied = torch.Generator(generator.device)
    return copied.set_state(generator.get_state())


@functools.cache
def _torch_shared_types() -> tuple[type, ...]:
    import torch.distributed as dist

    return (torch.Stream, torch.Event, torch.jit.ScriptFunction, *((dist.ProcessGroup,) if dist.is_available() else ()))


def _find_uncopyable(thing: Any, memo: Callable[[], Memo], tried: set[int]) -> tuple[str, Any]:
    """Return the innermost object in a thing that cannot be copied, and the path that leads there."""
    for name, part in _iter_contents(thing):
        if id(part) in tried:
            continue
        tried.add(id(part))
        own = memo()
        own.find_special_objects(part)
        try:
            copy.deepcopy(part, own)
        except Exception:  # as above
            path, held = _find_uncopyable(part, memo, tried)
            return name + path, held
    return "", thing


def _iter_contents(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from ((f"[{number}]", value) for number, value in enumerate(thing))
    elif isinstance(thing, types.MethodType):
        yield ".__self__", thing.__self__
    elif isinstance(thing, functools.partial):
        yield from ((".func", thing.func), (".args", thing.args), (".keywords", thing.keywords))
    if isinstance(thing, torch.nn.Module):
        for held in (thing._modules, thing._parameters, thing._buffers):
            yield from ((f".{name}", part) for name, part in held.items())
    slots = [name for kind in type(thing).__mro__ for name in vars(kind).get("__slots__", ()) if hasattr(thing, name)]
    yield from ((f".{name}", getattr(thing, name)) for name in slots if name not in ("__dict__", "__weakref__"))
    yield from ((f".{name}", value) for name, value in getattr(thing, "__dict__", {}).items())


_ALIGNED = 16
"""Bytes of the largest element: a copy of memory begins at a multiple of it."""


class TensorCopies:
    """Copies tensors, and memory that several of them lie in but once."""

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        self._convert = convert
        self._ends: dict[tuple[int, Any], tuple[int, int]] = {}
        self._memory: dict[tuple[int, Any], torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Announce a tensor that may be copied: its memory is copied as far as all announced tensors reach."""
        if place := self._place_of(tensor):
            start, end = _span(tensor)
            known = self._ends.get(place, (start, end))
            self._ends[place] = min(start, known[0]), max(end, known[1])

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it. The result of a graph becomes a value without one."""
        with torch.no_grad():
            place = self._place_of(tensor)
            copied = self._view_memory_copy(tensor, place) if place else self._copy_alone(tensor)
            if isinstance(tensor, torch.nn.Parameter) and not isinstance(copied, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, requires_grad=False)
            needs = tensor.requires_grad and tensor.is_leaf and (copied.is_floating_point() or copied.is_complex())
            return copied.requires_grad_(needs) if copied.requires_grad is not needs else copied

    def _place_of(self, tensor: torch.Tensor) -> tuple[int, Any] | None:
        """Name the memory of a tensor, or return None if it has none of the usual kind, or holds its own negative.

        If tensors are converted, those of one dtype have a memory of their own.
        """
        if not is_plain_tensor(tensor) or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        if tensor.is_quantized or tensor.is_neg() or not tensor.numel():
            return None
        address = tensor.untyped_storage().data_ptr()  # none on "meta"
        return (address, tensor.dtype if self._convert else None) if address else None

    def _copy_alone(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_plain_tensor(tensor) or tensor.is_nested or not tensor.is_leaf:
            copied = pytree.copy_of(tensor)
        else:  # a class of its own, which knows how
            copied = tensor.__deepcopy__({})
        if self._convert is None or torch.nn.parameter.is_lazy(copied):
            return copied
        if torch.nn.Parameter not in type(copied).__mro__:
            return self._convert(copied)
        copied.data = self._convert(copied.data)  # so that it stays of its class
        return copied

    def _view_memory_copy(self, tensor: torch.Tensor, place: tuple[int, Any]) -> torch.Tensor:
        start, _ = self._ends[place]
        if place not in self._memory:
            self._memory[place] = self._copy_range(tensor, *self._ends[place])
        memory = self._memory[place]
        copied = (memory if self._convert else tensor.detach()).new_empty(0)
        offset = tensor.storage_offset() - start // tensor.element_size()
        copied = copied.set_(memory.untyped_storage(), offset, tensor.shape, tensor.stride())
        return copied.conj() if tensor.is_conj() else copied

    def _copy_range(self, tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Copy a range of a tensor's memory: as bytes, or in its dtype if it is converted."""
        size = tensor.element_size() if self._convert else 1
        alias = tensor.detach().new_empty(0) if self._convert else tensor.new_empty(0, dtype=torch.uint8)
        alias.set_(tensor.untyped_storage(), start // size, ((end - start) // size,), (1,))
        return self._convert(alias.clone()) if self._convert else alias.clone()


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor or a parameter, and of no derived class."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first and last byte that a tensor reaches in its memory."""
    size = tensor.element_size()
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * size
    return start - start % _ALIGNED, start + (last + 1) * size


def gradient_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradient that a copy keeps: none of a parameter's, as `copy.deepcopy` has it."""
    keeps = tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter) and tensor.grad is not None
    return [tensor.grad] if keeps else []  # type: ignore[list-item]
