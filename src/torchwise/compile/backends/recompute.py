"""Compute activations again in the backward pass. The compiler picks them from its graph, functions included.

PyTorch's partitioner keeps the activations that cost most to compute again, within a share of their memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchwise._torch import aot_autograd

BUDGET = 0.25
"""Share of the activations' memory that is kept. Those of the inputs and weights count in it."""


class Recomputing:
    """A backend that keeps no more than this share.

    Dynamo recognises code by its backend. So it is another one than `inner`, whose code keeps all activations.
    """

    def __init__(self, inner: Callable[..., Any]) -> None:
        self._inner = inner
        if hasattr(inner, "assert_applied"):  # a rewrite's check that it changed something
            self.assert_applied = inner.assert_applied

    def __call__(self, graph: Any, inputs: Any) -> Any:
        """Compile the graph of the forward and backward pass."""
        with aot_autograd.patch_config(activation_memory_budget=BUDGET):
            return self._inner(graph, inputs)


@functools.cache
def wrap_backend(inner: Callable[..., Any]) -> Recomputing:
    """Return the backend around `inner`: one and the same, so that Dynamo recognizes compiled code."""
    return Recomputing(inner)
