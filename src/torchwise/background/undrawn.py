"""Call a plan once before the program does, and leave the program's random numbers to the program.

The first call loads kernels and sets libraries up: 70 ms of a convolutional net on an H200, which a request would wait
for. A model that draws random numbers cannot just be called: whoever set a seed would get other numbers than without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.realize import Backend, private, realize
from torchwise.realize.edge import Edge
from torchwise.workload import Workload

MODES = ("torch.utils._python_dispatch", "_push_mode"), ("torch.utils._python_dispatch", "_pop_mode")


def call_undrawn(call: Callable[..., Any], plan: Plan, backend: Backend, workload: Workload, device: str) -> None:
    """Call `plan` on each example, drawing from a generator of its own; answers are thrown away.

    Raises:
        UnsupportedError: the plan must see the original run first, or an operator draws that takes no generator.
        Exception: whatever the plan raises.
    """
    if Edge.is_needed(plan):  # it runs the original, and puts the generators back: so would it the program's own draws
        raise UnsupportedError(f"plan {plan} runs the model as it is before its first call")
    realized = realize(call, plan, workload.examples[0], device=device, mode="inference", backend=backend)
    try:
        for example in workload.examples:
            given = example.clone()
            with torch.no_grad(), drawing_apart(device):
                realized.call(*given.args, **given.kwargs)
    finally:
        realized.close()


@contextlib.contextmanager
def drawing_apart(device: str) -> Iterator[None]:
    """Give operators of this thread a generator of their own.

    A mode is entered by `with` as a rule, which also tells other threads that one is on: Dynamo would compile nothing
    there meanwhile. So it is only put on this thread's stack.

    Raises:
        UnsupportedError: (inside) an operator draws where no generator can be given.
    """
    push, pop = (private.look_up("a call without drawing", name) for name in MODES)
    push(_OwnGenerator(torch.Generator(device)))
    try:
        yield
    finally:
        pop()


class _OwnGenerator(TorchDispatchMode):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or _drops_nothing(func, args, kwargs):
            return func(*args, **kwargs)
        if func is torch.ops.aten.randint.low_out:  # by which Inductor's code seeds its kernels
            func = torch.ops.aten.randint.low_generator_out
        if not any(argument.name == "generator" for argument in func._schema.arguments):
            raise UnsupportedError(f"{func} takes no generator of its own")
        return func(*args, **{**kwargs, "generator": self._generator})


def _drops_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator draws for its dropout alone, as attention and RNNs do, and has none."""
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    default = {argument.name: argument.default_value for argument in func._schema.arguments}
    found = [{**default, **given}[name] for name in ("dropout_p", "dropout") if name in default]
    return bool(found) and not any(found)
