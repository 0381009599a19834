"""Call a plan once before the program does, and leave the program's random numbers to the program.

The first call loads kernels and sets libraries up: 70 ms of a convolutional net on an H200, which a request would wait
for. A model that draws random numbers cannot just be called: whoever set a seed would get other numbers than without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchwise.plan import Plan
from torchwise.realize import Backend, realize
from torchwise.workload import Workload, trees


def call_undrawn(call: Callable[..., Any], plan: Plan, backend: Backend, workload: Workload, device: str) -> None:
    """Call `plan` on each example, with zeros where random numbers would be drawn; answers are thrown away.

    Raises:
        Exception: whatever the plan raises, also where an operator draws in a way that is not known.
    """
    realized = realize(call, plan, workload.examples[0], device=device, mode="inference", backend=backend)
    try:
        for example in workload.examples:
            given = example.clone()
            with torch.no_grad(), Undrawn():  # type: ignore[no-untyped-call]
                realized.call(*given.args, **given.kwargs)
    finally:
        realized.close()


class Undrawn(TorchDispatchMode):
    """In this thread, operators that draw random numbers draw none; kernels of a compiler get seeds of zero."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Fill with zeros what would be drawn; pass every other operator on."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if written := _written(func, args, kwargs):
            return written[0].zero_()
        tensors = trees.tensors((args, kwargs))
        device = tensors[0].device if tensors else torch.device(kwargs.get("device") or "cpu")
        shadows = trees.map_tensors(lambda t: t.to("meta"), (args, kwargs))
        there = {**shadows[1], "device": "meta"} if "device" in kwargs else shadows[1]
        shapes = func(*shadows[0], **there)
        return trees.map_tensors(lambda t: torch.zeros_like(t, device=device), shapes)


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the arguments that an operator writes."""
    named = zip(func._schema.arguments, args, strict=False)
    given = {argument.name: value for argument, value in named} | kwargs
    return [
        given[argument.name]
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
    ]
