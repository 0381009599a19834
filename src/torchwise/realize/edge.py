"""The edge of a model whose inside runs in another precision or layout: cast on the way in, restore on the way out.

The casts are part of what is compiled, so that Inductor fuses them with the first and last kernels.

A compiler may lay outputs out otherwise by itself: Inductor's own form of `cat` is a copy of the one tensor that is not
empty, in that tensor's strides, where eager's is contiguous (torch 2.11 to 2.13; so begins every KV cache of
Transformers). The plan's transform `eager_strides` restores that, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.plan import Plan
from torchwise.workload.state import kept_buffers
from torchwise.workload.workload import Example


@dataclass(frozen=True, slots=True)
class Edge:
    """What happens to tensors at the edge.

    Attributes:
        plan: whose precision and memory format are meant.
        outputs: dtype of each output tensor of the original, and its dimensions by how far apart in memory their
            elements lie, farthest first; None for a tensor with gaps or repetitions, whose layout is left as it comes.
        device: "cpu" or "cuda", for autocast.
    """

    plan: Plan
    outputs: tuple[tuple[torch.dtype, tuple[int, ...] | None], ...]
    device: str

    @classmethod
    def for_plan(cls, plan: Plan, call: Callable[..., Any], example: Example) -> Edge:
        """Run the original once, where the plan needs an edge, to learn what its outputs look like."""
        from torchwise.workload import trees

        if not cls.is_needed(plan):
            return cls(plan, (), "cpu")
        example = example.clone()
        devices = {t.device.type for t in trees.tensors((example.args, dict(example.kwargs)))}
        module = call if isinstance(call, torch.nn.Module) else None
        generators = torch.random.fork_rng(enabled=True, devices=_cuda_devices(devices))
        with torch.no_grad(), generators, kept_buffers(module):
            outputs = trees.tensors(call(*example.args, **example.kwargs))
        forms = tuple((t.dtype, _order(t)) for t in outputs)
        return cls(plan, forms, "cuda" if "cuda" in devices else "cpu")

    @staticmethod
    def is_needed(plan: Plan) -> bool:
        """Whether tensors must be cast, or laid out otherwise, at the edge."""
        is_cast = plan.memory_format != "preserve" or plan.precision not in ("native", "tf32")
        return is_cast or "eager_strides" in plan.transforms

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` with its edge; `call` itself where the plan needs none."""
        if not self.is_needed(self.plan):
            return call
        from torch.utils import _pytree

        enter, leave = self._enter, self._leave

        def edged(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _pytree.tree_map(enter, (args, kwargs))
            with self._autocast():
                result = call(*args, **kwargs)
            leaves, spec = _pytree.tree_flatten(result)
            return _pytree.tree_unflatten(leave(leaves), spec)

        return edged

    def _enter(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if self.plan.precision == "bf16" and leaf.is_floating_point():
            leaf = leaf.to(torch.bfloat16)
        if self.plan.memory_format == "channels_last" and leaf.dim() == 4:
            leaf = leaf.to(memory_format=torch.channels_last)
        return leaf

    def _leave(self, leaves: list[Any]) -> list[Any]:
        restored: list[Any] = []
        position = 0
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                dtype, order = self.outputs[position]
                position += 1
                leaf = _laid(leaf.to(dtype), order)
            restored.append(leaf)
        return restored

    def _autocast(self) -> AbstractContextManager[Any]:
        dtypes = {"autocast_bf16": torch.bfloat16, "autocast_fp16": torch.float16}
        dtype = dtypes.get(self.plan.precision)
        return torch.autocast(self.device, dtype) if dtype else nullcontext()


def _order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    order = tuple(sorted(range(tensor.dim()), key=lambda dim: tensor.stride()[dim], reverse=True))
    order = tuple(range(tensor.dim())) if tensor.is_contiguous() else order
    return order if tensor.permute(order).is_contiguous() else None


def _laid(tensor: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    """Lay a tensor out with its dimensions in this order, farthest first; one that lies so stays where it is."""
    if order is None:
        return tensor
    if order == tuple(range(len(order))):
        return tensor.contiguous()
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])


def _cuda_devices(devices: set[str]) -> list[int]:
    return [torch.cuda.current_device()] if "cuda" in devices else []
