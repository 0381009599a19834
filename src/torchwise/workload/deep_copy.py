"""Deep copies of models, steps and inputs, with all that `copy.deepcopy` refuses of PyTorch's and Python's own."""

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
from torchwise.workload.closure import closes_over_state, with_copied_closure
from torchwise.workload.tensor_copies import TensorCopies, gradient_of, is_plain_tensor

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
