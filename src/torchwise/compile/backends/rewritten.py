"""Run the graphs that Dynamo captures in eager, after the plan's rewrites of functions: a plan of backend "eager"."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise.compile.backends.graphs import CheckedOnce, compile_call
from torchwise.compile.transforms import list_at
from torchwise.compile.transforms.function_graphs import Rewriting
from torchwise.plan import Plan
from torchwise.plan.choice import Stage


def compile(call: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """Return `call`, whose graphs are rewritten, and then run operator by operator (see `compile_call`)."""
    backend = _make_backend(list_at(plan.transforms, Stage.TRACE))

    def make(is_alone: bool) -> tuple[Any, list[Any]]:
        return backend.distinct() if is_alone else backend, [CheckedOnce(backend.rewriting)]

    return compile_call(call, plan, make)


class Rewritten:
    """A backend of `torch.compile` that rewrites each graph, and compiles nothing.

    Args:
        names: the rewrites, in their order.
    """

    compiler_name = "eager"

    def __init__(self, names: Sequence[str]) -> None:
        self.rewriting = Rewriting(names)

    def __call__(self, module: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        """Rewrite a graph that Dynamo captured, and return it."""
        self.rewriting(module.graph)
        module.graph.lint()
        module.recompile()
        return module.forward

    def distinct(self) -> Callable[..., Any]:
        """Return the same as another backend for Dynamo, which shares no code with this one."""
        return functools.partial(self)


@functools.cache
def _make_backend(names: tuple[str, ...]) -> Rewritten:
    """Return one and the same backend for equal rewrites, so that Dynamo recognizes compiled code."""
    return Rewritten(names)
