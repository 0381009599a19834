"""Whether one call is like another, as far as a plan goes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from torchwise.compile import Recognizer, Signature, signature_of
from torchwise.plan import Plan
from torchwise.workload import pytree
from torchwise.workload.identity import MEMORY

Known = tuple[Recognizer, Callable[..., Any]]
"""Recognizes calls like one that was answered, with the function that answers them."""


def is_of(key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call has this signature still, and a signature that can be looked up."""
    try:
        return signature_of(args, kwargs) == key and hash(key) is not None
    except Exception:  # an input may be of any kind, and refuse to be looked at
        return False


def make_recognizer(args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]) -> Known | None:
    """Return a recognizer of calls like this one that makes no signatures, or None if there can be none."""
    try:
        return Recognizer(args, kwargs), call
    except Exception:  # an input may be of any kind, and the call is answered already
        return None


def ranks(description: str) -> str:
    """Blank out the sizes and strides of a description, keeping names, dtypes and ranks. Shared memory is left out."""
    return re.sub(r"\d+(?=[,\]\)])", "·", strip_memory(description))


def strip_memory(description: str) -> str:
    """Leave out of a description of inputs how they share memory."""
    return description.partition(MEMORY)[0]


def memory(description: str) -> str:
    """Return the part of a description of inputs about shared memory, or "" if they share none."""
    return description.partition(MEMORY)[2]


def may_need_gradients(
    module: torch.nn.Module | None, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether an answer could need a gradient.

    A function's closure cannot be searched. Compiled code would carry its gradients, and a captured graph would not.
    """
    if module is not None and any(p.requires_grad for p in module.parameters()):
        return True
    if module is None and plan.capture != "none":
        return True
    return any(t.requires_grad for t in pytree.tensors((args, kwargs)))
