"""Call a plan once before the program does, without using the program's random numbers.

The first call loads kernels and initialises libraries. For a convolutional net on an H200 this takes 70 ms, which a
request would wait for. A model that draws random numbers needs care: after a seed, the program would get other numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from torchwise._torch.dispatch import POP_MODE, PUSH_MODE, TorchDispatchMode
from torchwise.compile import Backend, compile_plan
from torchwise.compile.io_casts import IOCasts
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.runtime.dispatch import Dispatcher
from torchwise.verify import Sensitivity, mismatch, observation_of
from torchwise.workload import Example, Workload


def warm_up_plan(call: Callable[..., Any], plan: Plan, backend: Backend, workload: Workload, device: str) -> None:
    """Call `plan` on each example with a separate random generator, and discard the answers.

    Raises:
        UnsupportedError: the plan must run the original first, or an operator draws and takes no generator.
        Exception: any error of the plan.
    """
    if IOCasts.is_needed(plan):  # it would run the original and rewind the generators under the program's draws
        raise UnsupportedError(f"plan {plan} runs the model as it is before its first call")
    compiled = compile_plan(call, plan, workload.examples[0], device=device, mode="inference", backend=backend)
    try:
        for example in workload.examples:
            copy = example.clone()
            with torch.no_grad(), isolate_rng(device):
                compiled.call(*copy.args, **copy.kwargs)
    finally:
        compiled.close()


@contextlib.contextmanager
def isolate_rng(device: str) -> Iterator[None]:
    """Give operators of this thread a separate generator.

    Usually a mode is entered by `with`, which also tells other threads that one is active. Dynamo would then compile
    nothing there. So the mode is only pushed on this thread's stack.

    Raises:
        UnsupportedError: (inside) an operator draws and takes no generator.
    """
    push, pop = (name.get("a call without drawing") for name in (PUSH_MODE, POP_MODE))
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
        if func is torch.ops.aten.randint.low_out:  # Inductor's code seeds its kernels with it
            func = torch.ops.aten.randint.low_generator_out
        if not any(argument.name == "generator" for argument in func._schema.arguments):
            raise UnsupportedError(f"{func} takes no generator of its own")
        return func(*args, **{**kwargs, "generator": self._generator})


def _drops_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether an operator draws only for dropout, as attention and RNNs do, and has no dropout."""
    arguments = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    default = {argument.name: argument.default_value for argument in func._schema.arguments}
    found = [{**default, **arguments}[name] for name in ("dropout_p", "dropout") if name in default]
    return bool(found) and not any(found)


def answers_alike(dispatcher: Dispatcher, workload: Workload) -> str | None:
    """Call the plan once on each example, which makes it ready. Return how an answer differs from the original's."""
    with torch.no_grad():
        for example in workload.examples:
            original, candidate = _observe_call(workload.call, example), _observe_call(dispatcher, example)
            if dispatcher.statistics.original:
                return f"it does not answer the example inputs: {next(iter(dispatcher.statistics.sentences.values()))}"
            moved = Sensitivity(partial(_run_perturbed, workload.call, example))
            if found := mismatch(candidate, original, dispatcher.decision.error or 0.0, moved):
                return f"on the example inputs its answer differs from the original's: {found}"
    return None


def _run_perturbed(call: Any, example: Example, context: AbstractContextManager[Any]) -> dict[str, Any]:
    with context:
        return dict(_observe_call(call, example).leaves)


def _observe_call(call: Any, example: Example) -> Any:
    copy = example.clone()
    answer = call(*copy.args, **copy.kwargs)
    return observation_of(answer, (copy.args, dict(copy.kwargs)))
