"""All private names of torch that the backend needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise.compile import private
from torchwise.errors import UnsupportedError

WHO = "the backend torchwise"


def inductor(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph as `torch.compile` does by default.

    Raises:
        UnsupportedError: this version has no such name.
    """
    compiled: Callable[..., Any] = private.look_up(WHO, _LOOKUP)("inductor")(module, inputs)
    return compiled


def size(symbol: torch.SymInt) -> int:
    """Return a symbol's size in the current call, without specialising it to that size (as `int` would).

    Raises:
        UnsupportedError: the size is unknown, as for a result whose size depends on data.
    """
    known = getattr(symbol.node, "hint", None)
    if not isinstance(known, int):
        raise UnsupportedError(f"the size {symbol} is not known before the graph runs")
    return known


def current_cuda_device() -> str:
    """Return the GPU for workers, such as "cuda:0", or "none" if this process uses none."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else "none"


def sets_grad_mode(target: Any) -> bool:
    """Return whether a node with this target switches gradients on or off.

    Raises:
        UnsupportedError: this version has no such name.
    """
    return target is private.look_up(WHO, _SET_GRAD)


def enters_autocast(target: Any) -> bool:
    """Return whether a node with this target enables or disables autocast.

    Raises:
        UnsupportedError: this version has no such name.
    """
    return target is private.look_up(WHO, _ENTER_AUTOCAST)


_LOOKUP = ("torch._dynamo", "lookup_backend")
_SET_GRAD = ("torch._C", "_set_grad_enabled")
_ENTER_AUTOCAST = ("torch.amp.autocast_mode", "_enter_autocast")
NAMES = (_LOOKUP, _SET_GRAD, _ENTER_AUTOCAST)
"""All private names in use."""
