"""Objects that hold tensors, such as the cache of a language model, as inputs of a captured call.

A graph reads and writes tensors, not objects. So the tensors in an object become inputs of the graph. Its other values,
its structure and the types in it are part of the signature. While the call is recorded, the object holds the graph's
own tensors instead. Writes of the call to them are copied to the object's tensors. If the call assigns other tensors,
each replay does so, too. A call that changes anything else of an object, such as a Python counter, is not captured, as
a replay runs no Python.

An empty object has places for tensors, and no tensors yet: the cache before its first prompt. A call that fills it runs
as it is, and those after it are captured. A call may return the object. It then returns that of each caller. A call
with objects that share parts runs as it is, too: what it writes to one, it may read from another.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch.pytree import tree_flatten, tree_unflatten
from torchwise.compile.cuda_graphs import CudaGraph
from torchwise.compile.cuda_graphs.object_contents import STANDS_FOR, ObjectContents, Place
from torchwise.compile.recognizer import make_recognizer
from torchwise.compile.signature import is_equal, is_plain
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree
from torchwise.workload.module_state import State


@dataclass(slots=True)
class _Object:
    """An object among a call's arguments, and the places of its tensors."""

    thing: Any
    contents: ObjectContents


class _Returned(int):
    """Stands for the object of a number among the inputs where a call returns it, as a leaf that holds nothing."""


class _TensorPlace:
    """Stands for the next tensor among the leaves of a form."""


@dataclass(frozen=True, slots=True)
class _Form:
    """The containers of a call's outputs. Replays give tensors alone, as walking through trees takes them longer.

    Attributes:
        leaves: the leaves in order, with `_TensorPlace` in place of each tensor, and `_Returned` of each object.
        spec: PyTorch's description of the containers.
    """

    leaves: list[Any]
    spec: Any

    @classmethod
    def find(cls, outputs: Any) -> tuple[_Form, list[torch.Tensor]] | None:
        """Return the form of outputs and their tensors, or None if PyTorch does not know all containers and leaves."""
        leaves, spec = tree_flatten(outputs)
        if not all(isinstance(leaf, torch.Tensor) or (pytree.is_leaf(leaf) and is_plain(leaf)) for leaf in leaves):
            return None
        places = [_TensorPlace if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return cls(places, spec), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def is_like(self, other: _Form) -> bool:
        """Whether outputs of both are made alike."""
        if self.spec != other.spec:
            return False
        return all(a is b or is_equal(a, b) for a, b in zip(self.leaves, other.leaves, strict=True))

    def fill(self, tensors: list[torch.Tensor], objects: list[_Object]) -> Any:
        """Return outputs of this form, with these tensors and objects."""
        following = iter(tensors)
        leaves = [next(following) if leaf is _TensorPlace else _find_object(leaf, objects) for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


def _find_object(leaf: Any, objects: list[_Object]) -> Any:
    """Return the object that a leaf stands for, or the leaf itself."""
    return objects[leaf].thing if type(leaf) is _Returned else leaf


class WithObjects:
    """A captured call that also accepts objects.

    Args:
        call: the callable.
        capture: captures a callable that takes the tensors in the objects.
        borrow: whether it returns memory that the next call overwrites. An object gets its own memory all the same.
    """

    def __init__(
        self, call: Callable[..., Any], capture: Callable[[Callable[..., Any]], CudaGraph], *, borrow: bool = False
    ) -> None:
        self._call, self._borrow = call, borrow
        self._captured = capture(self._functional)
        self._known: dict[int, tuple[weakref.ref[Any], ObjectContents]] = {}
        self._objects: list[_Object] = []
        self._forms: list[_Form] = []
        self._never_filled: set[type] = set()
        self._lock = threading.RLock()
        self.close = self._captured.close

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the call does, by replay."""
        objects: list[_Object] = []
        flat = self._flat((args, kwargs), objects)
        if not objects:
            return self._captured(*args, **kwargs)
        if _share_parts(objects):
            return self._call(*args, **kwargs)
        if any(one.contents.is_empty and type(one.thing) not in self._never_filled for one in objects):
            return self._fill_objects(objects, args, kwargs)
        return self._answer(self._captured, objects, _list_tensors(objects), *flat)

    def _answer(
        self,
        captured: Callable[..., Any],
        objects: list[_Object],
        tensors: list[list[torch.Tensor]],
        flat_args: tuple[Any, ...],
        flat_kwargs: dict[str, Any],
    ) -> Any:
        with self._lock:
            outer, self._objects = self._objects, objects  # those of a call around this one, if the model calls itself
            try:
                outputs, number, moved, places = captured(tensors, *flat_args, **flat_kwargs)
                for place, tensor in zip(places, moved, strict=True):
                    contents, own = _find_place(objects, place)
                    contents.assign(own, tensor.clone() if self._borrow else tensor)
            finally:
                self._objects = outer
        if number is None:
            return pytree.map_leaves(lambda leaf: _find_object(leaf, objects), outputs)
        return self._forms[number].fill(outputs, objects)

    def _fill_objects(self, objects: list[_Object], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Answer by the call as it is, and learn which objects stay empty, such as settings without a tensor."""
        answer = self._call(*args, **kwargs)
        for thing in [one.thing for one in objects if one.contents.is_empty]:
            if ObjectContents(thing, type(thing).__qualname__).is_empty:
                self._never_filled.add(type(thing))
        return answer

    def get_bypass(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return a faster callable for calls of this signature, valid while gradients and autocast are disabled."""
        objects: list[_Object] = []
        flat_args, flat_kwargs = self._flat((args, dict(kwargs)), objects)
        if not objects:
            return self._captured.get_bypass(args, kwargs)
        if len(objects) > 1:  # which may share parts, or one of them may be empty
            return self
        known = (_list_tensors(objects), *flat_args)
        try:
            recognize = make_recognizer(known, flat_kwargs)
        except UnsupportedError:
            return self
        replay = self._captured.get_bypass(known, flat_kwargs)

        def answer(*args: Any, **kwargs: Any) -> Any:
            objects: list[_Object] = []
            flat_args, flat_kwargs = self._flat((args, kwargs), objects)
            tensors = _list_tensors(objects)
            # The text in place of the object tells that it is not empty.
            if not recognize((tensors, *flat_args), flat_kwargs):
                return self(*args, **kwargs)
            return self._answer(replay, objects, tensors, flat_args, flat_kwargs)

        return answer

    def _flat(self, tree: Any, objects: list[_Object]) -> Any:
        """Replace objects by strings with the form of each, and its values other than tensors."""
        kind = type(tree)
        if kind is torch.Tensor or kind in pytree.PLAIN:
            return tree
        if kind is tuple or kind is list:
            return kind([self._flat(item, objects) for item in tree])
        if kind is dict:
            return {key: self._flat(item, objects) for key, item in tree.items()}
        if not pytree.is_leaf(tree) or isinstance(tree, torch.Tensor) or is_plain(tree):
            return tree
        objects.append(_Object(tree, self._inspect_object(tree)))
        return objects[-1].contents.text

    def _inspect_object(self, thing: Any) -> ObjectContents:
        """Return the contents of an object, which are kept while its structure stays the same."""
        key = id(thing)
        reference, known = self._known.get(key, (None, None))
        is_known = reference is not None and reference() is thing
        if is_known and known is not None and known.has_attributes_of(thing) and known.is_current():
            return known
        contents = ObjectContents(thing, type(thing).__qualname__)
        if contents.leads_back:  # kept contents would keep it alive: it is inspected each time
            self._known.pop(key, None)
            return contents
        with contextlib.suppress(TypeError):  # so is an object without weak references
            self._known[key] = weakref.ref(thing, lambda _: self._known.pop(key, None)), contents
        return contents

    def _functional(self, *args: Any, **kwargs: Any) -> Any:
        """Call with the graph's own tensors in the objects, while it is warmed up and recorded."""
        objects = self._objects
        if not objects or not args or not isinstance(args[0], list):
            return self._call(*args, **kwargs)
        tensors, *rest = args
        kept = [one.contents.now() for one in objects]
        before = [one.contents.values() for one in objects]
        # No copy of the state during a recording: it would be replayed, too. The warm-up checked the call before.
        is_recorded = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        state = None if is_recorded else State({"": [one.thing for one in objects]})
        try:
            _assign_tensors(objects, tensors)
            args, kwargs = _full((tuple(rest), kwargs), objects)
            outputs = self._call(*args, **kwargs)
            _refuse_changes(objects, before)
            after = [one.contents.now() for one in objects]
            pairs = [(a, b) for old, new in zip(tensors, after, strict=True) for a, b in zip(old, new, strict=True)]
            _refuse_other_forms(objects, pairs)
        except BaseException:  # raised again: another answer must begin from the state before
            if state is None:
                _assign_tensors(objects, kept)
            else:
                state.restore()
            raise
        _assign_tensors(objects, kept)
        numbers = {id(one.thing): _Returned(number) for number, one in enumerate(objects)}
        returned = [leaf for _, leaf in pytree.list_named_leaves(outputs) if id(leaf) in numbers]
        if returned:
            outputs = pytree.map_leaves(lambda leaf: numbers.get(id(leaf), leaf), outputs)
        places = tuple(place for place, (old, new) in enumerate(pairs) if new is not old)
        moved, found = [pairs[place][1] for place in places], _Form.find(outputs)
        if found is None:  # such as an object that hides its tensors, which is refused where it would be recorded
            return outputs, None, moved, places
        return found[1], self._keep_form(found[0]), moved, places

    def _keep_form(self, form: _Form) -> int:
        """Return the number of a form, which is new for the first call of its kind."""
        number = next((at for at, known in enumerate(self._forms) if known.is_like(form)), len(self._forms))
        if number == len(self._forms):
            self._forms.append(form)
        return number


def _list_tensors(objects: list[_Object]) -> list[list[torch.Tensor]]:
    return [one.contents.now() for one in objects]


def _share_parts(objects: list[_Object]) -> bool:
    return any(one.contents.parts & other.contents.parts for one, other in itertools.combinations(objects, 2))


def _refuse_changes(objects: list[_Object], before: list[tuple[Any, ...]]) -> None:
    """Refuse a call that changes a value other than a tensor, or the structure of an object."""
    for one, values in zip(objects, before, strict=True):
        kind = type(one.thing).__qualname__
        is_same = one.contents.has_attributes_of(one.thing) and one.contents.is_current()
        if not is_same or one.contents.values() != values:
            raise UnsupportedError(
                f"the call changes more than tensors in an input of type {kind}, but a replay would not do so"
            )


def _refuse_other_forms(objects: list[_Object], pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Refuse a call that replaces a tensor by one of another shape, dtype or device: each call would differ."""
    paths = [path for one in objects for path in one.contents.paths]
    for path, (old, new) in zip(paths, pairs, strict=True):
        if (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
            raise UnsupportedError(
                f"the call changes {path} from shape {tuple(old.shape)} to {tuple(new.shape)}, so each call would need "
                "a new capture: allocate its full size at the start, as a static cache does"
            )


def _assign_tensors(objects: list[_Object], tensors: list[list[torch.Tensor]]) -> None:
    for one, several in zip(objects, tensors, strict=True):
        for (holder, key), tensor in zip(one.contents.tensors, several, strict=True):
            holder[key] = tensor


def _find_place(objects: list[_Object], number: int) -> tuple[ObjectContents, Place]:
    for one in objects:
        if number < len(one.contents.tensors):
            return one.contents, one.contents.tensors[number]
        number -= len(one.contents.tensors)
    raise IndexError("a place of a tensor that no object has")


def _full(tree: Any, objects: list[_Object]) -> Any:
    """Put the objects back in place of the strings that replaced them."""
    remaining = iter(objects)

    def fill(tree: Any) -> Any:
        kind = type(tree)
        if kind is tuple or kind is list:
            return kind([fill(item) for item in tree])
        if kind is dict:
            return {key: fill(item) for key, item in tree.items()}
        return next(remaining).thing if isinstance(tree, str) and tree.startswith(STANDS_FOR) else tree

    return fill(tree)
