"""Guards in C++, and the context of one compilation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchwise._torch.private_name import PrivateName
from torchwise.errors import UnsupportedError

GLOBAL_STATE = PrivateName("torch._C._dynamo.guards", "GlobalStateGuard")
TENSOR_GUARDS = PrivateName("torch._C._dynamo.guards", "TensorGuards")
DICT_VERSION = PrivateName("torch._C._dynamo.guards", "dict_version")
"""Returns a number that changes with each write to a dict, up to Python 3.11."""
TRACING = PrivateName("torch._guards", "tracing")
TRACING_CONTEXT = PrivateName("torch._guards", "TracingContext")
DETECT_FAKE_MODE = PrivateName("torch._guards", "detect_fake_mode")
"""Returns the mode in which a backend makes fake tensors: not the mode in which Dynamo captured the graph."""


def make_settings_check() -> Callable[[], bool]:
    """Return a function that checks whether PyTorch's settings (TF32, determinism, default dtype) are unchanged."""
    check: Callable[[], bool] = GLOBAL_STATE.get()().check
    return check


def make_tensor_check(tensors: list[torch.Tensor]) -> Callable[..., bool]:
    """Return a check that as many tensors are like these, in one step.

    Raises:
        UnsupportedError: this version lacks those guards.
    """
    shapes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    try:
        guards = TENSOR_GUARDS.get()(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    except (AttributeError, TypeError) as error:
        raise UnsupportedError(f"torch {torch.__version__} has no such guards: {error}") from error
    check: Callable[..., bool] = guards.check
    return check


def trace_context(fake_mode: Any) -> AbstractContextManager[Any]:
    """Return a tracing context for one compilation.

    AOTAutograd leaves there its knowledge of a graph, and reads it again when it compiles the backward, which is later.
    Parts that shared a context would read each other's.
    """
    context: AbstractContextManager[Any] = TRACING.get()(TRACING_CONTEXT.get()(fake_mode))
    return context


def output_strides() -> list[Any] | None:
    """Return the list in which Inductor gives AOTAutograd the strides of a forward graph's outputs, to correct them."""
    context = TRACING_CONTEXT.get().try_get()
    return None if context is None else context.output_strides
