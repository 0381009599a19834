"""Rolled: find a loop again in the graph in which Dynamo unrolled it, compile one body, and call it each time.

Here is the backend for `torch.compile(fn, backend=...)`. `graph_index` is a graph as numbers, `repetitions` finds equal
parts of it and verifies that they are, and `split` cuts it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchwise._torch import dispatch, dynamo
from torchwise._torch import inductor as torch_inductor
from torchwise._torch.private_name import check
from torchwise.compile.loop_rolling.graph_index import GraphIndex
from torchwise.compile.loop_rolling.repetitions import find_repeated
from torchwise.compile.loop_rolling.split import compile_parts, split_graph
from torchwise.compile.uncompiled_reason import assert_transform_applied
from torchwise.errors import UnsupportedError

FEATURE = "scope 'rolled'"
NAMES = (
    torch_inductor.COMPILE_FX,
    dynamo.DETECT_FAKE_MODE,
    dynamo.TRACING,
    dynamo.TRACING_CONTEXT,
    dispatch.FAKE_TENSOR,
    dispatch.ENTER_AUTOCAST,
    dynamo.TO_FAKE_TENSOR,
)
"""The private names that rolling uses."""
_here = threading.local()
"""Of each thread: the first call that it watches, as the backend and its counts before it, and `in_frame`'s note."""
LONG = 500
"""Nodes above which a graph without repetitions is not compiled: it would take minutes, and be in vain."""


class LoopRolling:
    """A backend of `torch.compile` around another one, which compiles one body for all of its repetitions.

    A short graph without repetitions is compiled unchanged. A long one runs in eager. If it is the only one of a first
    call, the plan is refused, and the graph is compiled only if it is called again all the same.

    Args:
        inner: compiles one graph for its inputs, which are fake tensors.

    Attributes:
        rolled: how many graphs were rolled.
        reasons: why other graphs were not.
    """

    compiler_name = "inductor"

    def __init__(self, inner: Callable[..., Any]) -> None:
        self._inner = inner
        self.rolled = 0
        self.reasons: list[str] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph that Dynamo captured."""
        try:
            flow = GraphIndex.from_graph(module, inputs)
            cut = split_graph(flow, find_repeated(flow))
        except UnsupportedError as reason:
            self.reasons.append(str(reason))
            if len(module.graph.nodes) > LONG:
                return module.forward
            if self._is_only_graph(module):
                return _compile_later(module, self._inner)
            unrolled: Callable[..., Any] = self._inner(module, inputs)
            return unrolled
        self.rolled += 1
        return compile_parts(flow, cut, functools.partial(self._compile_part, flow.fake_mode))

    def _compile_part(self, fake_mode: Any, module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        with dynamo.trace_context(fake_mode):
            compiled: Callable[..., Any] = self._inner(module, inputs)
        return compiled

    def _is_only_graph(self, module: torch.fx.GraphModule) -> bool:
        """Whether a graph is the only one of this thread's watched first call: all of the call's own function."""
        is_first = getattr(_here, "watched", None) == (id(self), self.rolled, len(self.reasons) - 1)
        return is_first and getattr(_here, "is_whole", False) and dynamo.ends_by_return(module)

    @contextlib.contextmanager
    def assert_applied(self) -> Iterator[None]:
        """Watch a first call, and the reasons of the inner backend (see `assert_transform_applied`)."""
        inner = getattr(self._inner, "assert_applied", contextlib.nullcontext)
        before, _here.watched = getattr(_here, "watched", None), (id(self), self.rolled, len(self.reasons))
        try:
            with assert_transform_applied(("scope", "rolled"), lambda: self.rolled, self.reasons), inner():
                yield
        finally:
            _here.watched = before


@contextlib.contextmanager
def in_frame(*, is_whole: bool) -> Iterator[None]:
    """Note whether this thread compiles the call's own function, and not one that it calls or that goes on after it."""
    before, _here.is_whole = getattr(_here, "is_whole", False), is_whole
    try:
        yield
    finally:
        _here.is_whole = before


def _compile_later(module: torch.fx.GraphModule, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Return a graph that runs as captured once, and is compiled for its inputs by then when it is called again."""
    compiled: Callable[..., Any] | None = None
    calls = itertools.count()

    def call(*args: Any) -> Any:
        nonlocal compiled
        if compiled is None:
            if next(calls) == 0:
                return module.forward(*args)
            compiled = compile_graph(module, args)
        return compiled(*args)

    return call


@functools.cache
def wrap_backend(inner: Callable[..., Any]) -> LoopRolling:
    """Return the backend around `inner`: one and the same, so that Dynamo recognizes compiled code."""
    check(FEATURE, NAMES)
    return LoopRolling(inner)


@functools.cache
def inductor(options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """Return Inductor with `options` as such a backend: one and the same for equal options."""
    return functools.partial(torch_inductor.compile_fx, config_patches=dict(options))
