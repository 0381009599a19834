"""Count the least work of a call, for the roofline of a workload. Plug-ins use it, too."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from torchwise._torch.dispatch import FAKE_TENSOR_MODE
from torchwise.workload import Roofline
from torchwise.workload.pytree import map_tensors, tensors


def count_work(model: nn.Module, args: tuple[Any, ...]) -> Roofline | None:
    """Count the work of one call of `model` on `args`, cheaply, with fake tensors that have shapes but no values.

    FLOPs are those of matrix products, convolutions and attention, two per multiply-add, as in
    `torch.utils.flop_counter`. Causal attention counts in full, and elementwise work does not count. Bytes are those of
    weights, inputs and outputs, each moved once. Tables that are only used for look-ups do not count, as few of their
    rows are read.

    Returns:
        The count, or None for a model that cannot run without values.
    """
    state = dict([*model.named_parameters(), *model.named_buffers()])
    counter, fakes = FlopCounterMode(display=False), FAKE_TENSOR_MODE.get()(allow_non_fake_inputs=True)
    try:
        # Attention as separate products, as the counter does not know the fused kernels of every device.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), fakes, counter:
            shapes: dict[str, torch.Tensor] = {
                name: fakes.from_tensor(tensor.detach()) for name, tensor in state.items()
            }
            outputs = torch.func.functional_call(model, shapes, map_tensors(fakes.from_tensor, args))
    except Exception:  # a model may read values, which do not exist here: its work stays unknown
        return None
    looked_up = _tables(model)
    read = [tensor for tensor in state.values() if id(tensor) not in looked_up]
    return Roofline(flops=float(counter.get_total_flops()), bytes=float(count_bytes((read, args, outputs))))


def count_bytes(tree: Any) -> int:
    """Return how many bytes the tensors in `tree` hold."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(tree))


def _tables(model: nn.Module) -> set[int]:
    """Return the ids of tables that only embeddings use. A table shared with a Linear is read as a whole."""
    embeddings = [part for part in model.modules() if isinstance(part, nn.Embedding)]
    others = [part for part in model.modules() if not isinstance(part, nn.Embedding)]
    shared = {id(tensor) for part in others for tensor in part.parameters(recurse=False)}
    return {id(part.weight) for part in embeddings} - shared
