"""Compile graphs with weights frozen into the code: check that changes are noticed, and free the copies."""

from __future__ import annotations

import contextlib
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchwise._torch import inductor
from torchwise.compile.guards.module_guard import ModuleState
from torchwise.errors import UnsupportedError


class Freezing:
    """A backend for graphs with weights frozen into the code: the plan is stale when one of them changes.

    So each weight must be where the plan checks for changes: among the parameters, buffers and attributes of the model.
    The code holds copies of all weights, so it must be freed with the plan (`release`). Dynamo would keep the compiled
    code, with the backend that compiled it, for as long as the model lives.

    Args:
        backend: compiles the graphs.
        call: the compiled callable. Only the weights of a model are checked, so a function may have none in its code.
    """

    def __init__(self, backend: Callable[..., Any], call: Callable[..., Any]) -> None:
        self._backend = backend
        inside = getattr(call, "inside", call)
        owner = getattr(inside, "__self__", inside)
        self._owner = weakref.ref(owner) if isinstance(owner, torch.nn.Module) else None  # Dynamo keeps this object
        self._unguarded: list[str] = []
        self._compiled: list[Callable[..., Any]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph. While freezing, Dynamo registers the weights in it as they are."""
        owner = self._owner() if self._owner is not None else None
        guarded = set(map(id, ModuleState(owner).tensors)) if owner is not None else set()
        frozen = (*graph.named_parameters(), *graph.named_buffers())
        self._unguarded += [name for name, tensor in frozen if id(tensor) not in guarded]
        self._compiled.append(self._backend(graph, inputs))
        compiled, number = self._compiled, len(self._compiled) - 1
        return lambda *args: compiled[number](*args)

    def release(self) -> None:
        """Free the compiled code, and the copies of weights in it, when it can no longer be called."""
        self._compiled.clear()

    @contextlib.contextmanager
    def assert_applied(self) -> Iterator[None]:
        """Refuse the plan on exit if the compiled code froze a weight that is not checked for changes."""
        yield
        if self._unguarded:
            raise UnsupportedError(
                f"freezing would fold in {self._unguarded[0]}, which is no parameter, buffer or attribute of the "
                "model, such as a tensor in a list or of a global module: a change of it would go unnoticed. If this "
                "is a function, pass the module that has the weights"
            )


def without_cached_weights(backend: Callable[..., Any]) -> Callable[..., Any]:
    """Return Inductor's backend without its copies of weights in the cache that lasts until the process ends."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with _without_cached_weights():
            compiled: Callable[..., Any] = backend(graph, inputs)
        return compiled

    return compile_graph


@contextlib.contextmanager
def _without_cached_weights() -> Iterator[None]:
    """Remove new modules with weights from Inductor's cache, which would keep them until the process ends."""
    loaded: list[types.ModuleType] = inductor.CODE_CACHE.get().modules
    before = len(loaded)
    try:
        yield
    finally:  # a failing compilation, such as out of memory, may have loaded one already
        for module in loaded[before:]:
            if any(isinstance(value, torch.Tensor) for value in vars(module).values()):
                with contextlib.suppress(ValueError):  # the cache was cleared meanwhile
                    loaded.remove(module)
                # The name is derived from the source, which others may share.
                if sys.modules.get(module.__name__) is module:
                    del sys.modules[module.__name__]
