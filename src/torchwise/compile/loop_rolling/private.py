"""The private names of torch that rolling needs, looked up only here: torch does not promise to keep them."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchwise.compile import private

WHO = "scope 'rolled'"


name = functools.partial(private.look_up, WHO)


def compile_fx(*args: Any, **kwargs: Any) -> Any:
    """Call Inductor's public entry point."""
    return name(_COMPILE_FX)(*args, **kwargs)


def enters_autocast(target: Any) -> bool:
    """Whether a node's target is the one that Dynamo writes for the start of an autocast."""
    return target is name(_ENTER_AUTOCAST)


def fake_mode_of(values: Any) -> Any:
    """Return the mode in which a backend makes fake tensors: not the mode in which Dynamo captured the graph."""
    return name(_DETECT)(values)


def fake(tensor: torch.Tensor, fake_mode: Any) -> Any:
    """Return a fake tensor with the form of a backend's input, or the tensor itself if it is fake already."""
    return tensor if isinstance(tensor, name(_FAKE_TENSOR)) else name(_TO_FAKE)(tensor, fake_mode)


def trace_context(fake_mode: Any) -> AbstractContextManager[Any]:
    """Return a tracing context for one compilation.

    AOTAutograd leaves there its knowledge of a graph, and reads it again when it compiles the backward, which is later.
    Parts that shared a context would read each other's.
    """
    context: AbstractContextManager[Any] = name(_TRACING)(name(_CONTEXT)(fake_mode))
    return context


_COMPILE_FX = ("torch._inductor.compile_fx", "compile_fx")
_DETECT = ("torch._guards", "detect_fake_mode")
_FAKE_TENSOR = ("torch._subclasses.fake_tensor", "FakeTensor")
_TO_FAKE = ("torch._dynamo.utils", "to_fake_tensor")
_TRACING = ("torch._guards", "tracing")
_CONTEXT = ("torch._guards", "TracingContext")
_ENTER_AUTOCAST = ("torch.amp.autocast_mode", "_enter_autocast")
NAMES = (_COMPILE_FX, _DETECT, _FAKE_TENSOR, _TO_FAKE, _TRACING, _CONTEXT, _ENTER_AUTOCAST)
"""Every private name used."""
check = functools.partial(private.check, WHO, NAMES)
