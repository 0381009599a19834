"""Calls on the straight way past Dynamo's guards, counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.realize.lean import Straight


class Counted:
    """Compiled calls, by Dynamo with a backend that compiles nothing, and how many went Dynamo's way."""

    def __init__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.straight = Straight(call)
        compiled = torch.compile(call, backend="eager", options={"guard_filter_fn": self.straight.guard_filter})
        self.straight.forget(args, kwargs)
        with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
            compiled(*args, **kwargs)
        self.steady_calls = 0

        def steady(*args: Any, **kwargs: Any) -> Any:
            self.steady_calls += 1
            return compiled(*args, **kwargs)

        self.way = self.straight.way(steady, steady, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.way(*args, **kwargs)
