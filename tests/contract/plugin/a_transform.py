"""A rewrite in one file: dropout, which does nothing in evaluation mode, is left out of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.compile.shared_copies import share
from torchwise.errors import UnsupportedError
from torchwise.plan import Choice, Numerics, Stage, Trait, register

HAS_DROPOUT = Trait("plugin.dropout")


def has_dropout(model: Any) -> bool:
    """Whether a model has dropout in it, switched off."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    return any(isinstance(part, torch.nn.Dropout) and not part.training for part in parts)


def drop_dropout(model: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a copy of the model without dropout, which shares its weights, and an empty layer for around it."""
    if not isinstance(model, torch.nn.Module) or not has_dropout(model):
        raise UnsupportedError("transforms has 'drop_dropout', but the model has no dropout, or is in training mode")
    copied = share(model)
    for part in copied.modules():
        for name, child in part.named_children():
            if isinstance(child, torch.nn.Dropout):
                setattr(part, name, torch.nn.Identity())
    return copied, lambda inner: inner


CHOICE = Choice(
    "transforms",
    "drop_dropout",
    Numerics.EXACT,
    complexity=1,
    summary="dropout is left out of a model in evaluation mode",
    modes=("inference",),
    required_traits=(HAS_DROPOUT,),
    detectors=((HAS_DROPOUT, has_dropout),),
    compile_factor=0.0,
    target_cost="launch",
    realized_by=drop_dropout,
    stage=Stage.MODEL,
)


def register_choices() -> None:
    """Register the rewrite: the function that an entry point of the group `torchwise.choices` names."""
    register(CHOICE)
