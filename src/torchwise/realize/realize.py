"""From a plan and a model to a callable with the same signature.

The steps are layers around the model, from the inside out: memory format and precision change the model and cast at
its edge, a backend compiles what that gives, capture replays it, settings hold around each call. A plan that leaves a
dimension alone adds no layer for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.realize import scope
from torchwise.realize.backends import BACKENDS
from torchwise.realize.capture import CAPTURES
from torchwise.realize.edge import Edge
from torchwise.realize.settings import settings_for
from torchwise.realize.weights import DerivedWeights, WeightsWatch, share
from torchwise.workload.workload import Example


@dataclass(frozen=True, slots=True)
class Realized:
    """A plan made callable.

    Attributes:
        plan: what was realised.
        call: takes what the original takes and returns what it returns, dtypes and strides included.
        close: frees what the plan holds (captured graphs); the callable must not be used afterwards.
    """

    plan: Plan
    call: Callable[..., Any]
    close: Callable[[], None]


def realize(call: Callable[..., Any], plan: Plan, example: Example, *, device: str, mode: str) -> Realized:
    """Make `plan` callable for `call`; nothing is compiled before the first call.

    The original is never changed: what a plan must change is a copy that shares its parameters and buffers, or
    follows them (`DerivedWeights`).

    Args:
        call: an `nn.Module` or a function.
        plan: how to run it.
        example: inputs for which the original is run once, where the plan must know what outputs look like.
        device: "cpu" or "cuda".
        mode: "inference" or "training".

    Raises:
        UnsupportedError: this torch, or this model, lacks what the plan needs.
    """
    import torch

    if plan.is_eager:
        return Realized(plan, call, _nothing)
    if plan.transforms:
        raise UnsupportedError(f"transforms are {', '.join(plan.transforms)}, which this version does not have")
    backend = BACKENDS.get(plan.backend)
    if backend is None:
        raise UnsupportedError(f"backend is {plan.backend!r}, but there are {', '.join(BACKENDS)}")

    module = call if isinstance(call, torch.nn.Module) else None
    inner: Callable[..., Any] = call
    derived = None
    if module is not None and (plan.precision == "bf16" or plan.memory_format == "channels_last"):
        derived = DerivedWeights(module, plan)
        inner = derived.copy
    elif module is not None and plan.scope == "regional":
        inner = share(module)

    edge = Edge.for_plan(plan, call, example)
    if plan.scope == "regional":
        if module is None:
            raise UnsupportedError("scope is 'regional', but a function has no repeated blocks: the model must be one")
        scope.compile_blocks(inner, lambda block: backend(block, plan))
        inner = edge.around(inner)
    else:
        inner = backend(edge.around(_entry(inner)), plan)
    inner = settings_for(plan).around(inner)
    close: Callable[[], None] = _nothing
    if plan.capture != "none":
        captured = CAPTURES[plan.capture](inner, module if derived is None else derived.copy, device=device, mode=mode)
        inner, close = captured, captured.close
    # Outside the capture: a replay runs no Python, and derived weights are refreshed where the graph reads them.
    if derived is not None:
        inner = derived.following(inner)
    if plan.option("freezing") and module is not None:
        inner = WeightsWatch(module).guarding(inner)
    return Realized(plan, inner, close)


def _nothing() -> None:
    """Free nothing: there is nothing to free."""


def _entry(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward of a module without hooks: entering below `Module.__call__` saves its cost on every call."""
    import torch

    if not isinstance(call, torch.nn.Module) or call._forward_hooks or call._forward_pre_hooks:
        return call
    forward: Callable[..., Any] = call.forward
    return forward
