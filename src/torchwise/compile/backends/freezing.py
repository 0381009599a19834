"""Graphs with weights frozen into the code: the weights to watch, and the memory to free with the plan."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchwise.compile.guards.module_guard import places_of
from torchwise.errors import UnsupportedError


class Freezing:
    """A backend for graphs with weights frozen into the code: the plan turns stale when one of them changes.

    So each weight must be where the plan looks for changes: among the parameters, buffers and attributes of the model.
    The code holds copies of all weights, so it must go when the plan does (`release`). Dynamo alone would keep it: it
    keeps compiled code, with the backend that compiled it, for as long as the model lives.

    Args:
        backend: compiles the graphs.
        owner: the model that is compiled. Any other object is not looked at.
    """

    def __init__(self, backend: Callable[..., Any], owner: Any) -> None:
        self._backend = backend
        self._owner = weakref.ref(owner) if isinstance(owner, torch.nn.Module) else None  # Dynamo keeps this object
        self._unseen: list[str] = []
        self._compiled: list[Callable[..., Any]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph. While weights are frozen, Dynamo hangs them in it as they are."""
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
        """Free the compiled code, and the copies of weights in it, when nobody can call it any more."""
        self._compiled.clear()

    @contextlib.contextmanager
    def effective(self) -> Iterator[None]:
        """Refuse the plan, from then on, if the compiled code froze a weight that nobody watches."""
        yield
        if self._unseen:
            raise UnsupportedError(
                f"freezing would fold in {self._unseen[0]}, which is no parameter, buffer or attribute of the model, "
                "such as one in a list or of a global module: nobody would notice that it changed"
            )


@contextlib.contextmanager
def _not_kept() -> Iterator[None]:
    """Keep Inductor from keeping the modules with weights that it writes: it would keep all until the process ends."""
    from torch._inductor.codecache import PyCodeCache

    before = len(PyCodeCache.modules)
    try:
        yield
    finally:  # a compilation that fails, such as for want of memory, may have loaded one by then
        for module in PyCodeCache.modules[before:]:
            if any(isinstance(value, torch.Tensor) for value in vars(module).values()):
                with contextlib.suppress(ValueError):  # somebody cleared the cache meanwhile
                    PyCodeCache.modules.remove(module)
                if sys.modules.get(module.__name__) is module:  # the name is of the source, which others may share
                    del sys.modules[module.__name__]
