"""Models with a fault planted at one stage of compiling each; each look loads the target, and so plants it anew."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

Change = Callable[[torch.Tensor], torch.Tensor]
Target = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


class Chain(torch.nn.Module):
    """A few operations that are right everywhere, in the middle of which a fault may sit: each one costs more looks."""

    def __init__(self, middle: Change = torch.cos) -> None:
        super().__init__()
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.middle(x * 2.0))


def _target(middle: Change = torch.cos) -> Target:
    return Chain(middle), (torch.linspace(-1.0, 1.0, 12).view(3, 4),)


def healthy() -> Target:
    return _target()


def eager_raises() -> Target:
    """Fails in eager."""
    return torch.nn.Linear(16, 16), (torch.randn(4, 8),)


def eager_nan() -> Target:
    """Is not finite in float32, and is in float64."""
    return (lambda x: x * 1e30 * 1e30 / 1e30), (torch.ones(4),)


def eager_dies() -> Target:
    return (lambda x: os.kill(os.getpid(), signal.SIGSEGV)), (torch.ones(4),)


class Disabled(torch.nn.Module):
    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1.0


def disable_compile() -> Target:
    """Is never compiled."""
    return Disabled(), (torch.ones(4),)


def _while_compiling(then: Change) -> Change:
    """What Dynamo takes for another function than Python does."""
    return lambda x: then(x) if torch.compiler.is_compiling() else torch.cos(x)


def dynamo_wrong() -> Target:
    return _target(_while_compiling(lambda x: torch.cos(x) * 1.01))


def dynamo_nan() -> Target:
    return _target(_while_compiling(lambda x: torch.log(torch.cos(x) - 9.0)))


class Arrays(torch.nn.Module):
    """Answers with arrays in an object, wrongly so when it is compiled."""

    def forward(self, x: torch.Tensor) -> Any:
        return {"sums": np.cumsum(x.numpy(), axis=0) * (1.5 if torch.compiler.is_compiling() else 1.0)}


def dynamo_wrong_arrays() -> Target:
    return Arrays(), (torch.linspace(-1.0, 1.0, 12).view(3, 4),)


class Opaque(torch.nn.Module):
    """Answers with something that nobody can look into."""

    def forward(self, x: torch.Tensor) -> Any:
        return _make_lock(), torch.tanh(x) * 2.0


@torch.compiler.disable
def _make_lock() -> threading.Lock:
    return threading.Lock()


def opaque() -> Target:
    return Opaque(), (torch.ones(4),)


def _wrong(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(x) * 1.01


def _dies(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)
    return x


def _raises(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("no cosine is traced here")


def _hangs(x: torch.Tensor) -> torch.Tensor:
    time.sleep(3600)
    return x


def _plant_fault(then: Change) -> Change:
    """Return a cosine that, once AOT autograd traces it down to ATen, is something else."""
    if not hasattr(torch.ops.bisect_faults, then.__name__):
        library = torch.library.Library("bisect_faults", "FRAGMENT")
        library.define(f"{then.__name__}(Tensor x) -> Tensor")
        library.impl(then.__name__, torch.cos, "CPU")
        library.impl(then.__name__, torch.empty_like, "Meta")

        def call_in_mode(mode: Any, x: torch.Tensor) -> torch.Tensor:
            with mode:
                return then(x)

        from torch._subclasses.functional_tensor import FunctionalTensorMode

        torch.library.register_torch_dispatch(
            f"bisect_faults::{then.__name__}",
            FunctionalTensorMode,
            lambda mode, _op, _types, args, _kwargs: call_in_mode(mode, *args),
            lib=library,
        )
        KEPT.append(library)
    operator: Change = getattr(torch.ops.bisect_faults, then.__name__).default
    return operator


KEPT: list[Any] = []


def aot_wrong() -> Target:
    return _target(_plant_fault(_wrong))


def aot_dies() -> Target:
    return _target(_plant_fault(_dies))


def aot_raises() -> Target:
    return _target(_plant_fault(_raises))


def aot_hangs() -> Target:
    return _target(_plant_fault(_hangs))


def decomposition_wrong() -> Target:
    """Has a wrong decomposition of the sigmoid."""
    from torch._inductor import decomposition

    decomposition.decompositions[torch.ops.aten.sigmoid.default] = lambda x: 1.0 / (1.0 + torch.exp(-1.01 * x))
    decomposition.fast_random_decomps.cache_clear()
    return _target()


def post_grad_wrong() -> Target:
    """Has a pass over Inductor's graph that takes a sine for a cosine."""
    from torch._inductor import config

    config.post_grad_custom_post_pass = _sine_for_cosine
    return torch.cos, (torch.linspace(-1.0, 1.0, 12).view(3, 4),)


def _sine_for_cosine(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if node.target is torch.ops.aten.cos.default:
            node.target = torch.ops.aten.sin.default


def code_dies() -> Target:
    """Has generated code that dies when it runs, unless it is not vectorised."""
    from torch._inductor import config, lowering

    true = lowering.lowerings[torch.ops.aten.cos.default]

    def lower(x: Any) -> Any:
        if config.cpp.simdlen != 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return true(x)

    lowering.lowerings[torch.ops.aten.cos.default] = lower
    return _target()
