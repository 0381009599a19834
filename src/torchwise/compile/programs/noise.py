"""Have random numbers drawn before the regions that read them, or inside of them.

`randn_like(x)` needs only the size of `x`. As an operator that waits for `x`, it would cut a region at each draw.

A region draws each number by its place, and by a seed that PyTorch draws once for each call of the graph. These are
other numbers than PyTorch's, of the same distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchwise.errors import UnsupportedError

MOST_SEED = 2**62
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


def draw_seed() -> torch.Tensor:
    """Return a seed from PyTorch's generator, int64 of size 1."""
    return torch.randint(MOST_SEED, (1,))


def draw_normal(_seed: torch.Tensor, _stream: int, size: Sequence[int]) -> torch.Tensor:
    """Return normal numbers of float32, as a region draws them: each of a stream of its own."""
    return torch.randn(size)


def draw_uniform(_seed: torch.Tensor, _stream: int, size: Sequence[int]) -> torch.Tensor:
    """Return numbers of float32 in [0, 1), as a region draws them."""
    return torch.rand(size)


_DRAWS = {torch.ops.aten.randn.default: draw_normal, torch.ops.aten.rand.default: draw_uniform}


def draw_inside(graph: torch.fx.Graph) -> None:
    """Have regions draw the random numbers of float32 that a graph draws by size."""
    found = [node for node in graph.nodes if node.target in _DRAWS and _is_plain(node.meta["val"])]
    if not found:
        return
    with graph.inserting_before(next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))):
        seed = graph.call_function(draw_seed)
    seed.meta["val"] = torch.zeros(1, dtype=torch.int64)
    for stream, node in enumerate(found):
        size = list(map(int, node.meta["val"].shape))
        with graph.inserting_before(node):
            made = graph.call_function(_DRAWS[node.target], (seed, stream, size))
        made.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor is of float32 on the CPU, contiguous, and of a size that is known."""
    is_known = all(isinstance(size, int) for size in value.shape)
    return is_known and value.device.type == "cpu" and value.dtype is torch.float32 and value.is_contiguous()
