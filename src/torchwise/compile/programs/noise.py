"""Have random numbers drawn before the regions that read them.

`randn_like(x)` needs only the size of `x`. As an operator that waits for `x`, it would cut a region at each draw.
"""

from __future__ import annotations

import torch

from torchwise.errors import UnsupportedError

_BY_SIZE = {
    torch.ops.aten.rand_like.default: torch.ops.aten.rand.default,
    torch.ops.aten.randn_like.default: torch.ops.aten.randn.default,
}


def free_noise(graph: torch.fx.Graph) -> None:
    """Replace draws that are shaped like a tensor by draws of its size. Their order, and so their numbers, stay.

    Raises:
        UnsupportedError: a draw that fills a tensor in eager would lie otherwise in memory here.
    """
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.bernoulli.p and not node.args[0].meta["val"].is_contiguous():
            raise UnsupportedError("random numbers are drawn into a tensor that is not contiguous")
        drawn = _BY_SIZE.get(node.target)
        if drawn is None:
            continue
        value = node.meta["val"]
        is_plain = value.device.type in ("cpu", "cuda") and all(isinstance(size, int) for size in value.shape)
        if is_plain and value.is_contiguous() and node.all_input_nodes[0].meta["val"].is_contiguous():
            with graph.inserting_before(node):
                made = graph.call_function(drawn, (list(value.shape),), {"dtype": value.dtype, "device": value.device})
            made.meta["val"] = value
            node.replace_all_uses_with(made)
            graph.erase_node(node)
