"""Calls that bypass Dynamo's guards, counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchwise.compile.backends.compile_callback import compile_with
from torchwise.compile.guards.guard_bypass import GuardBypass


def settings(**_: bool) -> AbstractContextManager[None]:
    return torch._dynamo.config.patch(skip_nnmodule_hook_guards=False, automatic_dynamic_shapes=False)  # type: ignore[no-any-return]


def eager(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    return graph.forward


class Counted:
    """Compiled calls, by Dynamo with a backend that compiles nothing, and how many went Dynamo's way."""

    def __init__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.bypass = GuardBypass(call)
        compiled, self.callback = compile_with(call, eager, self.bypass, settings, is_dynamic=False)
        self.steady_calls = -1

        def steady(*args: Any, **kwargs: Any) -> Any:
            self.steady_calls += 1
            self.callback.calls += 1
            return compiled(*args, **kwargs)

        before = self.bypass.prepare_bypass(args, kwargs)
        steady(*args, **kwargs)
        self.path = self.bypass.path(steady, args, kwargs, before)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.path(*args, **kwargs)
