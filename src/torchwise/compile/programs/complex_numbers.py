"""Complex numbers in row programs: as two real ones each, which loops keep in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise._torch.private_name import check
from torchwise.compile.transforms.complex_to_real import wrap_complex
from torchwise.compile.transforms.complex_to_real.fusion import FEATURE, NAMES
from torchwise.compile.transforms.complex_to_real.rewrite import Rewriting, rewrite


def split_complex(module: torch.fx.GraphModule) -> Rewriting | None:
    """Return a graph of operators with two real numbers for each complex one, or None if it has no complex ones.

    Raises:
        UnsupportedError: none of its complex operators can be rewritten, or this torch lacks a private name for it.
    """
    values = [node.meta.get("val") for node in module.graph.nodes]
    if not any(isinstance(value, torch.Tensor) and value.is_complex() for value in values):
        return None
    check(FEATURE, NAMES)
    return rewrite(module, [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")])


def join_complex(
    call: Callable[..., Any], complex_inputs: tuple[int, ...], complex_outputs: tuple[int, ...]
) -> Callable[..., Any]:
    """Return the callable of a rewritten graph with complex inputs and outputs."""
    boxed = wrap_complex(lambda args: call(*args), complex_inputs, complex_outputs)
    return lambda *args: boxed(list(args))
