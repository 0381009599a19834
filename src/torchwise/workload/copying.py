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
from typing import TYPE_CHECKING, Any

from torchwise.errors import TorchwiseError, WorkloadError
from torchwise.workload import trees

if TYPE_CHECKING:
    import torch

_LOCKS: dict[type, Callable[[Any], Any]] = {
    type(threading.Lock()): lambda _: threading.Lock(),
    type(threading.RLock()): lambda _: threading.RLock(),
}
_FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_THREADS = (threading.Barrier, threading.Condition, threading.Event, threading.Semaphore, threading.Thread, Executor)
_REFERENCES = (weakref.ref, weakref.ProxyType, weakref.CallableProxyType)
_SHARED = (types.ModuleType, contextvars.ContextVar, logging.Logger, logging.Handler, *_REFERENCES, *_FILES, *_THREADS)
"""Types whose objects stand in a copy, too: they cannot be copied, and are no state of a model."""
_CLOSED = (type, types.CodeType, types.FrameType, types.TracebackType, types.GeneratorType, types.CoroutineType)
"""Types that are not looked into, as a deep copy does not look into them either."""
_ALIGNED = 16
"""Bytes of the largest element: a copy of memory begins at a multiple of it."""


def deep_copy(
    thing: Any,
    memo: dict[int, Any] | None = None,
    *,
    convert: Callable[[torch.Tensor], torch.Tensor] | None = None,
    keep: tuple[type, ...] = (),
) -> Any:
    """Copy any object as `copy.deepcopy` does, and what that refuses, too.

    Tensors are copied whatever their layout, with their strides; the result of a graph becomes a value without one.
    Tensors that share memory share it in the copy. Random generators are copied with their state. Locks are made anew.
    What cannot be copied and is no state, such as an open file or a thread, is shared.

    Args:
        thing: what to copy.
        memo: that of `copy.deepcopy`: the copy of each object by its id. What is its own copy there is shared.
        convert: makes another tensor of each copy, element by element, such as one in float64.
        keep: types whose objects are shared.

    Raises:
        WorkloadError: something in it cannot be copied; it names the type, and the attribute that leads there.
    """
    own = memo if isinstance(memo, Memo) else Memo(memo or {}, convert, keep)
    own.look_through(thing)
    try:
        copied = copy.deepcopy(thing, own)
    except TorchwiseError:
        raise
    except Exception as error:  # objects of any kind copy themselves in their own way
        path, held = _culprit(thing, own.begin_anew, {id(thing)})
        kind = f"an object of type {type(held).__qualname__}"
        found = f"{type(thing).__name__} holds {kind} as {path.removeprefix('.')}, which" if path else kind
        raise WorkloadError(
            f"{found} cannot be copied ({type(error).__name__}: {error}): give its class a __deepcopy__, or keep it "
            "where no attribute leads to it, such as under a global name"
        ) from error
    if memo is not None and memo is not own:
        memo.update(own)
    return copied


class Memo(dict[int, Any]):
    """A memo of `copy.deepcopy` that copies certain objects in its own way once they are asked for.

    That method is not patched, for another thread may be copying; so these objects are found beforehand.
    """

    def __init__(
        self, known: dict[int, Any], convert: Callable[[torch.Tensor], torch.Tensor] | None, keep: tuple[type, ...]
    ) -> None:
        super().__init__(known)
        self.begin_anew = lambda: Memo(known, convert, keep)
        self._keep = (*_SHARED, *_shared_of_torch(), *keep)
        self._seen: dict[int, Any] = {}  # which also holds them, or another object could get the id of one
        self._ways: dict[int, Callable[[Any], Any]] = {}
        self._tensors = _Tensors(convert)

    def look_through(self, thing: Any) -> None:
        """Find the objects that are copied in a way of our own."""
        waiting = [thing]
        while waiting:
            found = waiting.pop()
            if id(found) in self._seen or super().__contains__(id(found)):
                continue
            self._seen[id(found)] = found
            way = self._way_of(found)
            if way is not None:
                self._ways[id(found)] = way
            if way is not _itself:
                waiting += _held_by(found)

    def get(self, key: int, default: Any = None) -> Any:
        """Return the copy of the object with this id; `dict.get` would not have it made."""
        return self[key] if key in self else default  # noqa: SIM401

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._ways

    def __missing__(self, key: int) -> Any:
        if key not in self._ways:
            raise KeyError(key)
        self[key] = made = self._ways[key](self._seen[key])
        if self._ways[key] == self._tensors.copy:
            self._copy_attributes(self._seen[key], made)
        return made

    def _way_of(self, found: Any) -> Callable[[Any], Any] | None:
        import torch

        kind = type(found)  # and not its `__class__`, by which a proxy says that it is something else
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
        return _LOCKS.get(kind)

    def _reference(self, reference: Any) -> Any:
        """Refer to the copy of what is copied, and to what it is otherwise."""
        target = reference()
        return weakref.ref(copy.deepcopy(target, self)) if id(target) in self._seen else reference

    def _local(self, local: Any) -> Any:
        made = threading.local()
        vars(made).update(copy.deepcopy(vars(local), self))
        return made

    def _proxy(self, proxy: Any) -> Any:
        return types.MappingProxyType(copy.deepcopy(dict(proxy), self))

    def _copy_attributes(self, tensor: torch.Tensor, made: torch.Tensor) -> None:
        if is_plain_tensor(tensor):  # others bring theirs along
            vars(made).update(copy.deepcopy(vars(tensor), self))
        if gradient := _gradient_of(tensor):
            made.grad = copy.deepcopy(gradient[0], self)


class _Tensors:
    """Copies tensors, and memory that several of them lie in but once."""

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        self._convert = convert
        self._ends: dict[tuple[int, Any], tuple[int, int]] = {}
        self._memory: dict[tuple[int, Any], torch.Tensor] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Hear of a tensor that may be asked for: the memory that it lies in is copied as far as all of them reach."""
        if place := self._place_of(tensor):
            start, end = _span(tensor)
            known = self._ends.get(place, (start, end))
            self._ends[place] = min(start, known[0]), max(end, known[1])

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it; what a graph led to becomes a value without one."""
        import torch

        with torch.no_grad():
            place = self._place_of(tensor)
            made = self._in_memory(tensor, place) if place else self._by_itself(tensor)
            if isinstance(tensor, torch.nn.Parameter) and not isinstance(made, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=False)
            needs = tensor.requires_grad and tensor.is_leaf and (made.is_floating_point() or made.is_complex())
            return made.requires_grad_(needs) if made.requires_grad is not needs else made

    def _place_of(self, tensor: torch.Tensor) -> tuple[int, Any] | None:
        """Name the memory that a tensor lies in; None where it has none of the usual kind, or holds its own negative.

        Where tensors are converted, those of one dtype have theirs.
        """
        import torch

        if not is_plain_tensor(tensor) or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        if tensor.is_quantized or tensor.is_neg() or not tensor.numel():
            return None
        address = tensor.untyped_storage().data_ptr()  # none on "meta"
        return (address, tensor.dtype if self._convert else None) if address else None

    def _by_itself(self, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        if is_plain_tensor(tensor) or tensor.is_nested or not tensor.is_leaf:
            made = trees.copy_of(tensor)
        else:  # a class of its own, which knows how
            made = tensor.__deepcopy__({})
        if self._convert is None or torch.nn.parameter.is_lazy(made):
            return made
        if torch.nn.Parameter not in type(made).__mro__:
            return self._convert(made)
        made.data = self._convert(made.data)  # so that it stays of its class
        return made

    def _in_memory(self, tensor: torch.Tensor, place: tuple[int, Any]) -> torch.Tensor:
        start, _ = self._ends[place]
        if place not in self._memory:
            self._memory[place] = self._copied(tensor, *self._ends[place])
        memory = self._memory[place]
        made = (memory if self._convert else tensor.detach()).new_empty(0)
        offset = tensor.storage_offset() - start // tensor.element_size()
        made = made.set_(memory.untyped_storage(), offset, tensor.shape, tensor.stride())
        return made.conj() if tensor.is_conj() else made

    def _copied(self, tensor: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Copy bytes of the memory that a tensor lies in: as bytes, or in its dtype where it is converted."""
        import torch

        size = tensor.element_size() if self._convert else 1
        alias = tensor.detach().new_empty(0) if self._convert else tensor.new_empty(0, dtype=torch.uint8)
        alias.set_(tensor.untyped_storage(), start // size, ((end - start) // size,), (1,))
        return self._convert(alias.clone()) if self._convert else alias.clone()


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor or a parameter, and of no class that somebody derived."""
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first and last byte that a tensor reaches in its memory."""
    size = tensor.element_size()
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * size
    return start - start % _ALIGNED, start + (last + 1) * size


def _gradient_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradient that a copy keeps: none of a parameter's, as `copy.deepcopy` has it."""
    import torch

    keeps = tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter) and tensor.grad is not None
    return [tensor.grad] if keeps else []  # type: ignore[list-item]


def _held_by(found: Any) -> list[Any]:
    """List what an object holds on to and a copy of it may have to copy."""
    import torch

    if issubclass(type(found), _CLOSED):
        return []
    if issubclass(type(found), torch.Tensor):
        return [*vars(found).values(), *_gradient_of(found)]
    if type(found) is types.FunctionType:  # and not all that it sees by global names
        return [*(found.__closure__ or ()), found.__defaults__, found.__kwdefaults__, vars(found)]
    return gc.get_referents(found)


def _itself(thing: Any) -> Any:
    return thing


def _generator(generator: torch.Generator) -> torch.Generator:
    """Copy a generator with its state; PyTorch's own, which `torch.manual_seed` seeds, stays what it is."""
    import torch

    if any(generator is known for known in (torch.default_generator, *torch.cuda.default_generators)):
        return generator
    made = torch.Generator(generator.device)
    return made.set_state(generator.get_state())


@functools.cache
def _shared_of_torch() -> tuple[type, ...]:
    import torch
    import torch.distributed as dist

    return (torch.Stream, torch.Event, *((dist.ProcessGroup,) if dist.is_available() else ()))


def _culprit(thing: Any, memo: Callable[[], Memo], tried: set[int]) -> tuple[str, Any]:
    """Return what in a thing cannot be copied, as deep as can be, and the path that leads there."""
    for name, part in _parts_of(thing):
        if id(part) in tried:
            continue
        tried.add(id(part))
        own = memo()
        own.look_through(part)
        try:
            copy.deepcopy(part, own)
        except Exception:  # as above
            path, held = _culprit(part, memo, tried)
            return name + path, held
    return "", thing


def _parts_of(thing: Any) -> Iterator[tuple[str, Any]]:
    import torch

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
