"""`torch.compile` with Inductor. All private use of Dynamo and Inductor that realising needs sits here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.rules import CUDA_GRAPH_MODES
from torchwise.realize.signature import is_plain, opaque_leaves, signature_of
from torchwise.workload import trees


def compile(call: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """Return `call` compiled as `plan` says, on its first call for each signature.

    Raises:
        UnsupportedError: this torch has no such mode or option.
    """
    import torch

    compiled: Callable[..., Any] = torch.compile(
        call, backend="inductor", dynamic=plan.shapes == "dynamic", options=_options(plan)
    )
    if plan.option("freezing"):
        compiled = _frozen(compiled)
    if plan.mode in CUDA_GRAPH_MODES:
        compiled = _outputs_owned(compiled)
    return compiled


def compiled_graphs() -> int:
    """Count the graphs that Dynamo has captured in this process: 0 says that nothing was compiled."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _options(plan: Plan) -> dict[str, Any]:
    """Return the mode's own options with the plan's on top; `torch.compile` takes a mode or options, not both."""
    import torch._inductor

    modes = torch._inductor.list_mode_options()
    if plan.mode not in modes:
        raise UnsupportedError(f"mode is {plan.mode!r}, but this torch has {', '.join(modes)}")
    # Freezing is left out: as an option of torch.compile it is ignored without a word.
    options = {**modes[plan.mode], **{k: v for k, v in plan.options if k != "freezing"}}
    if plan.capture != "none":
        options["triton.cudagraphs"] = False
    known = torch._inductor.list_options()
    for name in options:
        if name not in known:
            raise UnsupportedError(f"Inductor option {name!r} does not exist in torch {torch.__version__}")
    return options


def _frozen(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Fold the weights in, which only the global setting does, at the moment of compiling and without gradients."""
    import torch
    from torch._inductor import config

    patched = config.patch(freezing=True)
    seen: set[Any] = set()

    @functools.wraps(compiled)
    def frozen(*args: Any, **kwargs: Any) -> Any:
        signature = signature_of(args, kwargs)
        if signature in seen:
            return compiled(*args, **kwargs)
        with patched, torch.no_grad():
            result = compiled(*args, **kwargs)
        seen.add(signature)
        return result

    return frozen


def _outputs_owned(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Copy outputs out of the graph's memory, which the next replay overwrites: a caller may hold an answer.

    Raises (on call):
        UnsupportedError: an output is in an object that trees cannot see into, so that it cannot be copied.
    """
    import torch
    from torch.utils import _pytree

    @functools.wraps(compiled)
    def owned(*args: Any, **kwargs: Any) -> Any:
        outputs = compiled(*args, **kwargs)
        if isinstance(outputs, torch.Tensor):
            return outputs.clone()
        return _pytree.tree_map(_own, outputs)

    return owned


def _own(leaf: Any) -> Any:
    import torch

    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    if is_plain(leaf):
        return leaf
    if opaque := opaque_leaves(leaf):
        raise UnsupportedError(
            f"an output holds {opaque[0]}: what is in it cannot be copied out of the CUDA graph's memory, which the "
            "next call overwrites; return tensors in tuples, lists, dicts or dataclasses"
        )
    return trees.map_tensors(torch.Tensor.clone, leaf)
