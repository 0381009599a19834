"""The edge of a model whose inside runs in another precision or layout: cast on the way in, restore on the way out.

The casts are part of what is compiled, so that Inductor fuses them with the first and last kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from torchwise.plan import Plan
from torchwise.workload import trees
from torchwise.workload.state import kept_generators, kept_state
from torchwise.workload.workload import Example

AUTOCAST = {"autocast_bf16": torch.bfloat16, "autocast_fp16": torch.float16}
"""The type that autocast computes in, by precision."""


@dataclass(frozen=True, slots=True)
class Edge:
    """What happens to tensors at the edge.

    Attributes:
        plan: whose precision and memory format are meant.
        outputs: dtype, and whether rows are contiguous, of each output tensor of the original.
        device: "cpu" or "cuda", for autocast.
    """

    plan: Plan
    outputs: tuple[tuple[torch.dtype, bool], ...]
    device: str

    @classmethod
    def for_plan(cls, plan: Plan, call: Callable[..., Any], example: Example) -> Edge:
        """Run the original once, where the plan needs an edge, to learn what its outputs look like."""
        if not cls.is_needed(plan):
            return cls(plan, (), "cpu")
        example = example.clone()
        device = "cuda" if any(t.is_cuda for t in example.tensors()) else "cpu"
        with torch.no_grad(), kept_generators(device), kept_state(call, example.args, example.kwargs):
            outputs = trees.tensors(call(*example.args, **example.kwargs))
        forms = tuple((t.dtype, t.is_contiguous()) for t in outputs)
        return cls(plan, forms, device)

    @staticmethod
    def is_needed(plan: Plan) -> bool:
        """Whether tensors must be cast, or laid out otherwise, at the edge."""
        return plan.memory_format != "preserve" or plan.precision not in ("native", "tf32")

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` with its edge, as whose `inside` it is known; `call` itself where the plan needs none."""
        if not self.is_needed(self.plan):
            return call
        enter, leave = self._enter, self._leave

        def edged(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _pytree.tree_map(enter, (args, kwargs))
            with self._autocast():
                result = call(*args, **kwargs)
            leaves, spec = _pytree.tree_flatten(result)
            return _pytree.tree_unflatten(leave(leaves), spec)

        edged.inside = call  # type: ignore[attr-defined]
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
                dtype, contiguous = self.outputs[position]
                position += 1
                leaf = leaf.to(dtype)
                leaf = leaf.contiguous() if contiguous else leaf
            restored.append(leaf)
        return restored

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.plan.precision)
        return torch.autocast(self.device, dtype) if dtype else nullcontext()
