"""Graphs whose weights are frozen into the code: what must be watched, and what is freed with the plan."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchwise.errors import UnsupportedError
from torchwise.realize.watch import places_of


class Freezing:
    """A backend for graphs whose weights are frozen into the code: the plan turns stale when one of them changes.

    So each must be where the plan looks for changes: among the parameters, buffers and attributes of the model. And as
    the code holds copies of them all, it goes when the plan does (`release`): Dynamo keeps what it compiled, with the
    backend that it was compiled by, for as long as the model lives.

    Args:
        backend: what compiles the graphs.
        owner: the model that is compiled; anything else is not looked at.
    """

    def __init__(self, backend: Callable[..., Any], owner: Any) -> None:
        self._backend = backend
        self._owner = weakref.ref(owner) if isinstance(owner, torch.nn.Module) else None  # Dynamo keeps this object
        self._unseen: list[str] = []
        self._compiled: list[Callable[..., Any]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph; while weights are frozen, Dynamo hangs them in it as they are."""
        owner = self._owner() if self._owner is not None else None
        if owner is not None:
            seen = {id(holder[name]) for holder, name in places_of(owner).tensors}
            frozen = (*graph.named_parameters(), *graph.named_buffers())
            self._unseen += [name for name, tensor in frozen if id(tensor) not in seen]
        with _not_kept():
            self._compiled.append(self._backend(graph, inputs))
        compiled, number = self._compiled, len(self._compiled) - 1
        return lambda *args: compiled[number](*args)

    def release(self) -> None:
        """Free what was compiled, and the copies of weights in it, when nobody can call it any more."""
        self._compiled.clear()

    @contextlib.contextmanager
    def effective(self) -> Iterator[None]:
        """Refuse the plan, from then on, where what was compiled froze a weight that nobody watches."""
        yield
        if self._unseen:
            raise UnsupportedError(
                f"freezing would fold in {self._unseen[0]}, which is no parameter, buffer or attribute of the model, "
                "such as one in a list or of a global module: nobody would notice that it changed"
            )


@contextlib.contextmanager
def _not_kept() -> Iterator[None]:
    """Have Inductor not keep the modules with weights that it writes meanwhile: it keeps all until the process ends."""
    from torch._inductor.codecache import PyCodeCache

    before = len(PyCodeCache.modules)
    try:
        yield
    finally:  # a compilation that fails, for want of memory, may have loaded one by then
        for module in PyCodeCache.modules[before:]:
            if any(isinstance(value, torch.Tensor) for value in vars(module).values()):
                with contextlib.suppress(ValueError):  # somebody cleared the cache meanwhile
                    PyCodeCache.modules.remove(module)
                if sys.modules.get(module.__name__) is module:  # the name is of the source, which others may share
                    del sys.modules[module.__name__]
