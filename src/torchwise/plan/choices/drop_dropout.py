"""Dropout left out of a model in evaluation mode, where it does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.errors import UnsupportedError
from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

IDLE_DROPOUT = Trait("torchwise.idle_dropout")


def has_idle_dropout(model: Any) -> bool:
    """Whether a model has dropout that is switched off."""
    from torch import nn

    parts = model.modules() if isinstance(model, nn.Module) else ()
    return any(isinstance(part, nn.Dropout) and not part.training for part in parts)


def drop_dropout(model: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a copy that shares the weights, without dropout, and no layer for around it.

    Raises:
        UnsupportedError: the model has no dropout that is switched off.
    """
    from torch import nn

    from torchwise.compile.shared_copies import share

    if not isinstance(model, nn.Module) or not has_idle_dropout(model):
        raise UnsupportedError("transforms has 'drop_dropout', but the model has no dropout that is switched off")
    copied = share(model)
    for part in copied.modules():
        for name, child in part.named_children():
            if isinstance(child, nn.Dropout):
                setattr(part, name, nn.Identity())
    return copied, lambda inner: inner


register(
    Choice(
        "transforms",
        "drop_dropout",
        Numerics.EXACT,
        complexity=1,
        summary="dropout, which does nothing in evaluation mode, is left out of the model",
        modes=("inference",),
        required_traits=(IDLE_DROPOUT,),
        effort="thorough",
        compile_factor=0.0,
        target_cost="launch",
        realized_by=f"{__name__}:drop_dropout",
        stage=Stage.MODEL,
        detectors=((IDLE_DROPOUT, f"{__name__}:has_idle_dropout"),),
    )
)
